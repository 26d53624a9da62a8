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

from tff_fedfish.errors import require
from tff_fedfish.late import module, tf, tff
from tff_fedfish.methods.method import Method

_local_training = module('tff_fedfish.rounds.local_training')

# Settings of `client_work` that have a default and are read all the same.
_READ = ('local_batch_size', 'max_sequences_per_client', 'micro_batch_size')
_READ += ('max_delta_norm',)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedSgd(Method):
  """Weighted mean of the clients' gradients at the server's model.

  A gradient is over all data of a client. Clients take no steps, and so have no
  optimizer: `client_work.learning_rate` is not read.
  """

  title = 'FedSGD'
  source = (
    'McMahan et al. (2017), "Communication-efficient learning of deep networks '
    'from decentralized data"'
  )
  hue, hatch = '#009E73', '....'
  takes_steps = False

  def observer(self, start):
    def observe(gradient_sums, gradients, num_rows):
      sums, count = gradient_sums
      sums = tf.nest.map_structure(
        lambda s, g: s + tf.cast(num_rows, g.dtype) * g, sums, gradients
      )
      return sums, count + num_rows

    zeros = tf.nest.map_structure(tf.zeros_like, start.trainable)
    return _local_training.GradientObserver(
      (zeros, tf.constant(0, tf.int64)), observe
    )

  def make_update(self, client):
    # The count is that of the observer: batches of DP-SGD count alike.
    sums, count = client.local.gradient_sums
    gradient = tf.nest.map_structure(
      lambda s: tf.math.divide_no_nan(s, tf.cast(count, s.dtype)), sums
    )
    return client.bounded(gradient)

  def build(self, model, *, client_optimizer=None, **training):
    """Builds FedSGD; `client_optimizer` never steps. None: plain SGD."""
    num_epochs = training.get('num_local_epochs', 1)
    require(num_epochs == 1, 'num_local_epochs', '1', num_epochs)
    num_steps = training.get('num_local_steps')
    require(num_steps is None, 'num_local_steps', 'None', num_steps)
    optimizer = client_optimizer or tff.learning.optimizers.build_sgdm(1.0)
    return super().build(model, client_optimizer=optimizer, **training)

  def quantized_extra_bytes(self, config):
    return 0

  def problems(self, config):
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
      f'{self.name!r}, whose clients take no local steps, found {found!r}'
      for name, wanted in expected.items()
      if (found := getattr(work, name)) != wanted
    ]
