"""FedProx: local training that is held near the server's model.

Li et al. (2020), "Federated optimization in heterogeneous networks": client i
minimizes

  F_i(theta) + mu / 2 |theta - theta_G|^2

that is, mu (theta - theta_G) is added to every gradient; all else is FedAvg.
(`tff.learning.algorithms.build_weighted_fed_prox` of TFF 0.87 adds it with the
opposite sign, which drives clients away from the server's model.)

An adaptive mu (section 5.3.2) rises by a step after a round whose loss rose,
and falls by it after `patience` falls of the loss in a row. The paper leaves
the first round and ties open: both count as falls here, as in FL4Health's
`FedAvgWithAdaptiveConstraint`.
"""

import collections
import dataclasses
from typing import Any, Literal

from tff_fedfish.errors import require
from tff_fedfish.fields import number
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Column
from tff_fedfish.methods.settings import AlgorithmConfig, require_in_range


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedProxConfig(AlgorithmConfig):
  """Settings of FedProx: the strength of the proximal term."""

  mu: float = number(0.0, at_least=0)
  """Strength mu of the proximal term mu / 2 |theta - theta_G|^2, >= 0. 0 is
  FedAvg. With an adaptation it is the first round's."""
  adaptation: Literal['none', 'fl4health'] = 'none'
  """Rule by which mu follows the training loss. 'none': mu is constant.
  'fl4health': mu rises by `mu_step` when the loss rises, and falls by it after
  `patience` falls in a row. The first round and a tie count as falls."""
  mu_step: float = number(0.1, above=0)
  """Change of mu by an adaptation, > 0."""
  patience: int = number(5, at_least=1)
  """Falls of the loss in a row after which mu falls, >= 1. Unit: rounds."""


def build_fed_prox(
  model: Any,
  *,
  mu: float = 0.0,
  adaptation: str = 'none',
  mu_step: float = 0.1,
  patience: int = 5,
  **training: Any,
) -> Any:
  """Builds FedProx.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    mu: See `FedProxConfig`, as the next three. Where a paper prints the term as
      mu |theta - theta_G|^2, its mu is half of this one.
    adaptation: See there.
    mu_step: See there.
    patience: See there.
    **training: See `rounds.compose.compose`.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`. With
    an adaptation `client_work` has `mu`, `previous_loss` and `num_falls` as
    they were when the round began.

  Raises:
    ValueError: If a setting is outside its range, or the adaptation would send
      losses without `local_privacy`'s noise.
  """
  import tensorflow as tf

  from tff_fedfish.rounds.compose import compose

  require_in_range(
    FedProxConfig,
    mu=mu,
    adaptation=adaptation,
    mu_step=mu_step,
    patience=patience,
  )
  adapts = adaptation != 'none'
  is_private = training.get('local_privacy') is not None
  wanted = "'none' with local_privacy"
  require(not (adapts and is_private), 'adaptation', wanted, adaptation)

  def build_correct_gradient(start):
    strength = start.method['mu'] if adapts else mu

    def correct_gradient(gradients, weights):
      return tf.nest.map_structure(
        lambda g, w, w_0: g + tf.cast(strength, g.dtype) * (w - w_0),
        gradients,
        weights,
        start.trainable,
      )

    return correct_gradient

  return compose(
    model,
    make_update=lambda client: client.model_delta(),
    build_correct_gradient=build_correct_gradient,
    method_state=_adaptive_mu(mu, mu_step, patience) if adapts else None,
    **training,
  )


def _adaptive_mu(mu, mu_step, patience):
  """Returns mu as a state that follows the loss from round to round.

  A round's loss is the unweighted mean over its clients of the data loss's mean
  over their local steps. One that is not finite, as when every client with data
  diverged, counts as a rise and is not compared with the next. A round without
  data does not count.
  """
  import tensorflow as tf

  from tff_fedfish.rounds.client_work import MethodState

  def next_state(state, sums, counts):
    loss_sum, num_clients = sums
    loss = loss_sum / num_clients
    is_finite = tf.math.is_finite(loss)
    rises = tf.logical_or(
      loss > state['previous_loss'], tf.logical_not(is_finite)
    )
    num_falls = tf.where(rises, 0, state['num_falls'] + 1)
    shrinks = num_falls >= patience
    shrunk = tf.where(
      shrinks, tf.maximum(state['mu'] - mu_step, 0.0), state['mu']
    )
    changed = collections.OrderedDict(
      mu=tf.where(rises, state['mu'] + mu_step, shrunk),
      previous_loss=tf.where(is_finite, loss, state['previous_loss']),
      num_falls=tf.where(shrinks, 0, num_falls),
    )
    is_counted = tf.logical_or(
      num_clients > 0, counts['num_non_finite_clients'] > 0
    )
    return tf.nest.map_structure(
      lambda new, old: tf.where(is_counted, new, old), changed, state
    )

  return MethodState(
    initial=lambda specs: collections.OrderedDict(
      mu=tf.constant(mu, tf.float32),
      previous_loss=tf.constant(float('inf')),
      num_falls=tf.constant(0),
    ),
    summands=lambda client: (client.local.mean_loss, tf.constant(1.0)),
    next=next_state,
    reported=('mu', 'previous_loss', 'num_falls'),
  )


def _problems(config):
  rule = config.algorithm.adaptation
  if rule == 'none' or not config.local_privacy.is_on:
    return []
  return [
    "`config.algorithm.adaptation` must be 'none' with local_privacy, as it "
    f'reads training losses, which have no noise, found {rule!r}'
  ]


METHOD = Method(
  name='fed_prox',
  title='FedProx',
  summary=(
    'FedAvg whose clients minimize their loss plus a proximal term that holds '
    "them near the server's model."
  ),
  source=(
    'Li et al. (2020), "Federated optimization in heterogeneous networks"'
  ),
  settings=FedProxConfig,
  builder='tff_fedfish.methods.fed_prox:build_fed_prox',
  # The corrected gradients.
  cost=lambda config: ClientCost(models_held=1),
  columns=lambda config: (
    (Column('train/mu', ('client_work', 'mu')),)
    if config.algorithm.adaptation != 'none'
    else ()
  ),
  bytes_beside_delta=lambda config: 0,
  problems=_problems,
  hue='#CC79A7',
  hatch='xxxx',
)
