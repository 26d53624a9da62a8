"""FedSGD: every client sends one gradient, computed at the server's model.

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data":

  g_i = sum over batches b of |b| g_b / n_i, with g_b the gradient of the mean
        loss of batch b at theta_G
  g = sum_i w_i g_i / sum_i w_i
  theta_G <- server optimizer step on g

With w_i = n_i, and as many targets in every row, g is the gradient of the mean
loss over the union of the clients' data.
"""

import dataclasses
from typing import Any

from tff_fedfish.errors import require
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig

# Settings of `client_work` that have a default and are read all the same.
_READ = ('local_batch_size', 'max_sequences_per_client', 'micro_batch_size')
_READ += ('max_delta_norm',)


def build_fed_sgd(
  model: Any, *, client_optimizer: Any = None, **training: Any
) -> Any:
  """Builds FedSGD.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph. It
      runs in training mode.
    client_optimizer: Never steps; its hyperparameters are kept in the state.
      None: plain SGD.
    **training: See `rounds.compose.compose`. `server_optimizer` consumes g;
      `max_delta_norm` bounds g_i.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.

  Raises:
    ValueError: If `num_local_epochs` is not 1.
  """
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_fedfish.rounds.compose import compose
  from tff_fedfish.rounds.local_training import GradientObserver

  num_epochs = training.get('num_local_epochs', 1)
  require(num_epochs == 1, 'num_local_epochs', '1', num_epochs)

  def build_observer(trainable):
    def observe(observation, gradients, num_rows):
      sums, count = observation
      sums = tf.nest.map_structure(
        lambda s, g: s + tf.cast(num_rows, g.dtype) * g, sums, gradients
      )
      return sums, count + num_rows

    zeros = tf.nest.map_structure(tf.zeros_like, trainable)
    return GradientObserver((zeros, tf.constant(0, tf.int64)), observe)

  def make_update(client):
    # The count is that of the observer: batches of DP-SGD count alike.
    sums, count = client.local.observation
    gradient = tf.nest.map_structure(
      lambda s: tf.math.divide_no_nan(s, tf.cast(count, s.dtype)), sums
    )
    return client.bounded(gradient)

  return compose(
    model,
    client_optimizer=(
      client_optimizer or tff.learning.optimizers.build_sgdm(1.0)
    ),
    make_update=make_update,
    build_observer=build_observer,
    takes_steps=False,
    **training,
  )


def _problems(config):
  work = config.client_work
  expected = {
    field.name: field.default
    for field in dataclasses.fields(work)
    # The learning rate is required, though nothing reads it.
    if field.name not in (*_READ, 'learning_rate')
  }
  expected['num_local_epochs'] = 1
  return [
    f'`config.client_work.{name}` must be {wanted} with algorithm.name '
    f'{config.algorithm.name!r}, whose clients take no local steps, found '
    f'{found!r}'
    for name, wanted in expected.items()
    if (found := getattr(work, name)) != wanted
  ]


METHOD = Method(
  name='fed_sgd',
  title='FedSGD',
  summary=(
    'Weighted mean of the gradients that the clients compute over all of '
    "their data at the server's model. Clients take no steps, and so have no "
    'optimizer: `client_work.learning_rate` is not read.'
  ),
  source=(
    'McMahan et al. (2017), "Communication-efficient learning of deep networks '
    'from decentralized data"'
  ),
  settings=AlgorithmConfig,
  builder='tff_fedfish.methods.fed_sgd:build_fed_sgd',
  bytes_beside_delta=lambda config: 0,
  problems=_problems,
  hue='#009E73',
  hatch='....',
)
