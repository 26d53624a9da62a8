"""FedFomo: clients mix the models of others by what these do for them.

Zhang et al. (2021), "Personalized federated learning with first order model
optimization". The weights are those of `mathematics/fomo.py`; which models a
client is sent is decided outside of the process, see `run/candidates.py`.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require
from tff_fedfish.mathematics import fomo
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.compose import Model, compose
from tff_fedfish.rounds.kept import KeptSlot
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.runtime.client_data import CANDIDATES, VALIDATION


def build_fed_fomo(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  num_clients: int,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedFomo.

  A client begins a round with its baseline b, moved by a federated update to
  the candidates that it is given; the result becomes its baseline, is trained,
  and is kept as its model. Without candidates, as in its first round, it begins
  with its baseline, which at first is the server's weights. A client without
  validation rows has nothing to choose by: it begins with its own last model.
  The server's weights stay as they are.

  Args:
    model: A FunctionalModel or a ModelSpec whose metrics have a `loss`.
    client_optimizer: See `build_fed_avg`.
    server_optimizer: Not used; the server has nothing to step on.
    num_local_epochs: See `build_fed_avg`.
    num_clients: K, the clients that may take part; positions of candidates are
      below it.
    client_weighting: See `build_fed_avg`; it weighs nothing.
    num_local_steps: See `build_fed_avg`.
    micro_batch_size: See `build_fed_avg`.
    local_privacy: See `build_fed_avg`.

  Returns:
    The learning process, a `StatefulLearningProcess` with `personal_models`.
    Clients also take `validation`, batches on which losses are computed, and
    `candidates`, <position=int32, weights>: their own last model and those that
    they were sent. They keep `model`, `baseline` and `affinity`, float32 [K].
    The count `num_downloads` says how many models they were sent.

  Raises:
    ValueError: If an argument is outside what is listed.
  """
  is_count = isinstance(num_clients, int) and num_clients >= 1
  require(is_count, 'num_clients', 'an integer of at least 1', num_clients)

  def begin(functional_model, start):
    validation = start.inputs[VALIDATION]
    base = start.kept['baseline']

    def loss_of(weights):
      metrics = local_training.evaluate(
        functional_model, weights, start.non_trainable, validation
      )
      return functional_model.finalize_metrics(metrics)['loss']

    base_loss = loss_of(base)
    row, mass, count = tf.zeros([num_clients]), 0.0, 0
    total = tf.nest.map_structure(tf.zeros_like, base)
    for candidate in iter(start.inputs[CANDIDATES]):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      weights = candidate['weights']
      raw = fomo.raw_weights(
        base_loss, loss_of(weights), fomo.distance(weights, base)
      )
      positive = tf.maximum(raw, 0.0)
      total = tf.nest.map_structure(
        # A candidate that is not finite weighs 0.
        lambda t, w, b, p=positive: t + tf.math.multiply_no_nan(w - b, p),
        total,
        weights,
        base,
      )
      row = tf.tensor_scatter_nd_add(row, [[candidate['position']]], [raw])
      mass += positive
      count += 1
    validates = tf.constant(False)
    for _ in iter(validation.take(1)):
      validates = tf.constant(True)
    theta = tf.nest.map_structure(
      lambda b, t, own: tf.where(
        validates, b + tf.math.divide_no_nan(t, mass), own
      ),
      base,
      total,
      start.kept['model'],
    )
    return start._replace(
      own_model=theta,
      found={'affinity': start.kept['affinity'] + row},
      # Its own model comes first, and needs no download.
      counts={'num_downloads': tf.maximum(count - 1, 0)},
    )

  slots = {
    'model': KeptSlot(
      initial=lambda trainable: trainable,
      next=lambda client: client.local.trainable,
    ),
    'baseline': KeptSlot(
      initial=lambda trainable: trainable,
      next=lambda client: client.start.own_model,
    ),
    'affinity': KeptSlot(
      initial=lambda unused_trainable: tf.zeros([num_clients]),
      next=lambda client: client.start.found['affinity'],
    ),
  }
  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    begin=begin,
    client_inputs=(VALIDATION, CANDIDATES),
    kept_slots=slots,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
    local_privacy=local_privacy,
  )
