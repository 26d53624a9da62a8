"""FedSGD: one gradient of every client, at the server's model.

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data":

  g_i = sum over batches b of |b| g_b / n_i, with g_b the gradient of the mean
        loss of batch b at theta_G
  g = sum_i w_i g_i / sum_i w_i
  theta_G <- server optimizer step on g

With w_i = n_i, and as many targets in every row, g is the gradient of the mean
loss over the union of the clients' data.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.compose import Model, TrainedClient, compose
from tff_fedfish.rounds.privacy import LocalPrivacy


def build_fed_sgd(
  model: Model,
  *,
  server_optimizer: tff.learning.optimizers.Optimizer,
  client_optimizer: tff.learning.optimizers.Optimizer | None = None,
  num_local_epochs: int = 1,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedSGD.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph. It
      runs in training mode.
    server_optimizer: Consumes g; its learning rate is that of the method.
    client_optimizer: Accepted so that all builders have one shape: its
      hyperparameters are kept in the state, but not read. None: plain SGD's.
    num_local_epochs: Must be 1: clients take no local steps.
    client_weighting: w_i: the client's rows, or 1.
    max_delta_norm: Bound on the global L2 norm of g_i over all trainable
      tensors, > 0; a longer one is scaled down to it before it is weighed.
      None: no bound.
    num_local_steps: Must be None.
    micro_batch_size: See `build_fed_avg`.
    local_privacy: See `build_fed_avg`.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.

  Raises:
    ValueError: If an argument is outside what is listed.
  """
  if num_local_epochs != 1 or num_local_steps is not None:
    raise ValueError(
      'FedSGD takes one gradient over all data of a client: '
      '`num_local_epochs` must be 1 and `num_local_steps` None, found '
      f'{num_local_epochs!r} and {num_local_steps!r}.'
    )

  def build_observer(trainable):
    def observe(observation, gradients, num_examples):
      sums, count = observation
      sums = tf.nest.map_structure(
        lambda s, g: s + tf.cast(num_examples, g.dtype) * g, sums, gradients
      )
      return sums, count + num_examples

    zeros = tf.nest.map_structure(tf.zeros_like, trainable)
    return local_training.GradientObserver(
      (zeros, tf.constant(0, tf.int64)), observe
    )

  def make_update(client: TrainedClient):
    # Of DP-SGD, whose batches count alike, not the rows.
    sums, count = client.local.observation
    gradient = tf.nest.map_structure(
      lambda s: tf.math.divide_no_nan(s, tf.cast(count, s.dtype)), sums
    )
    return client.bounded(gradient)

  return compose(
    model,
    client_optimizer=_NoStep(
      client_optimizer or tff.learning.optimizers.build_sgdm(1.0)
    ),
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=make_update,
    # Without the guard an empty cohort would be 0/0.
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    build_observer=build_observer,
    max_delta_norm=max_delta_norm,
    micro_batch_size=micro_batch_size,
    local_privacy=local_privacy,
  )


class _NoStep(tff.learning.optimizers.Optimizer):
  """Leaves the weights as they are, with another's hyperparameters."""

  def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
    self._optimizer = optimizer

  def initialize(self, specs):
    # Only the hyperparameters are wanted, not momenta like the weights.
    del specs
    return self._optimizer.initialize(tf.TensorSpec([], tf.float32))

  def next(self, state, weights, gradients):
    del gradients
    return state, weights

  def get_hparams(self, state):
    return self._optimizer.get_hparams(state)

  def set_hparams(self, state, hparams):
    return self._optimizer.set_hparams(state, hparams)
