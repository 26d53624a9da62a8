"""FedProx: local training that is held near the server's model.

Li et al. (2020), "Federated optimization in heterogeneous networks": client i
minimizes

  F_i(theta) + mu / 2 |theta - theta_G|^2

that is, mu (theta - theta_G) is added to every gradient; all else is FedAvg.
(`tff.learning.algorithms.build_weighted_fed_prox` of TFF 0.87 adds it with the
opposite sign, which drives clients away from the server's model.)
"""

import math

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require, require_one_of
from tff_fedfish.mathematics import adaptive_mu
from tff_fedfish.rounds.client_work import MethodState
from tff_fedfish.rounds.compose import Model, compose
from tff_fedfish.rounds.privacy import LocalPrivacy

ADAPTATIONS = ('none', 'fl4health')


def build_fed_prox(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  mu: float = 0.0,
  adaptation: str = 'none',
  mu_step: float = 0.1,
  patience: int = 5,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  keeps_optimizer_state: bool = False,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedProx.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: See `build_fed_avg`.
    server_optimizer: See `build_fed_avg`.
    num_local_epochs: See `build_fed_avg`.
    mu: Strength of the proximal term, >= 0; the first round's if it adapts. 0
      is FedAvg. Where the term is printed as mu |theta - theta_G|^2, without
      the half, that mu is half of this one.
    adaptation: How mu follows the loss from round to round: not ('none'), or as
      in `adaptive_mu` ('fl4health'). A round's loss is the unweighted mean over
      its clients of the data loss's mean over their local steps. A round in
      which every client with data diverged counts as a rise; one without data
      is not counted.
    mu_step: What an adaptation changes mu by, > 0.
    patience: Falls of the loss in a row after which mu shrinks, >= 1.
    client_weighting: See `build_fed_avg`.
    max_delta_norm: See `build_fed_avg`.
    num_local_steps: See `build_fed_avg`.
    micro_batch_size: See `build_fed_avg`.
    keeps_optimizer_state: See `build_fed_avg`.
    local_privacy: See `build_fed_avg`.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`. With
    an adaptation `client_work` has `mu`, `previous_loss` and `num_falls` as
    they were when the round began.

  Raises:
    ValueError: If an argument is outside what is listed.
  """
  require(0 <= mu < math.inf, 'mu', 'a number of at least 0', mu)
  require_one_of('adaptation', adaptation, ADAPTATIONS)
  require(0 < mu_step < math.inf, 'mu_step', 'a number above 0', mu_step)
  wanted = "'none' with local_privacy, as it reads losses without noise"
  is_private = local_privacy is not None and adaptation != 'none'
  require(not is_private, 'adaptation', wanted, adaptation)
  is_count = isinstance(patience, int) and patience >= 1
  require(is_count, 'patience', 'an integer of at least 1', patience)

  def build_correct_gradient(start):
    strength = start.method['mu'] if start.method else mu

    def correct_gradient(gradients, weights):
      return tf.nest.map_structure(
        lambda g, w, start: g + tf.cast(strength, g.dtype) * (w - start),
        gradients,
        weights,
        start.trainable,
      )

    return correct_gradient

  def next_state(state, sums, counts):
    loss_sum, num_clients = sums
    # NaN, which is a rise, where no client is left.
    changed = adaptive_mu.next_mu(
      state,
      loss_sum / num_clients,
      mu_step=mu_step,
      patience=patience,
    )
    is_counted = tf.logical_or(
      num_clients > 0, counts['num_non_finite_clients'] > 0
    )
    return tf.nest.map_structure(
      lambda new, old: tf.where(is_counted, new, old), changed, state
    )

  method_state = MethodState(
    initial=lambda specs: adaptive_mu.initial_state(mu),
    summands=lambda client: (client.local.mean_loss, tf.constant(1.0)),
    next=next_state,
    reported=tuple(adaptive_mu.initial_state(mu)),
  )
  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    build_correct_gradient=build_correct_gradient,
    method_state=None if adaptation == 'none' else method_state,
    max_delta_norm=max_delta_norm,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
    local_privacy=local_privacy,
    keeps_optimizer_state=keeps_optimizer_state,
  )
