"""FedFish: the mean of the model deltas, weighted by Fisher diagonals.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", equation 4 and algorithms 1 and 2:

  client i:  theta_i after E local epochs from theta_G
             delta_i = theta_G - theta_i
             F_i[j] = sum_b g_b[j]^2    in one more pass over its batches b
             a_i = F_i
  server:    g[j] = sum_i w_i a_i[j] delta_i[j] / sum_i w_i a_i[j]
             theta_G <- server optimizer step on g

| letter | meaning |
|---|---|
| g_b | gradient of the mean loss of batch b at theta_i |
| F_i | empirical Fisher diagonal |
| a_i | weights of coordinates |
| w_i | client weight: its number of sequences or images, or 1 |

Clients send (delta_i, a_i); products and quotient: `rounds/weighted_mean.py`.
With 'sum' and w_i in sequences, as printed, the amount of data counts twice.

'last_epoch' is in the paper's appendix A.5.1. Not in the paper: the other
estimators, f_i = F_i^p, its means over units, its division by the mean over a
tensor, tensors with FedAvg's mean, and two mixtures with that, of the
aggregates (s, `plain_mean_fraction`) or of the weights:

  a_i = 1 - q + q min(f_i / mean f_i, c)

p = 0, s = 1 or q = 0 is FedAvg. `aggregation.bits` below 32 round a_i of
elements.
"""

import dataclasses
import math
import types
from typing import Any, Literal, NamedTuple

from models.model_shapes import are_stacked, input_axes, weight_shapes
from models.transformer_config import LOGITS_TENSORS
from tff_fedfish.errors import require
from tff_fedfish.fields import SET, ConfigError, number, setting
from tff_fedfish.late import module, tf
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Column, Traffic
from tff_fedfish.methods.settings import settings_unlike
from tff_fedfish.rounds import compression
from tff_fedfish.rounds.fold import fold

_gradients = module('tff_fedfish.rounds.gradients')
_local_training = module('tff_fedfish.rounds.local_training')
_weighted_mean = module('tff_fedfish.rounds.weighted_mean')


class Squares(NamedTuple):
  """Sums of g_b^2, float32, () for a tensor without a_i; number of batches."""

  sums: tuple[Any, ...]
  num_batches: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFish(Method):
  """Function-space aggregation: deltas weighted by Fisher diagonals."""

  title = 'FedFish'
  source = (
    'Dhawan et al. (2024), "Leveraging function space aggregation for '
    'federated learning at scale"'
  )
  hue, hatch = '#D55E00', ''

  fisher_estimator: Literal[
    'extra_pass', 'last_epoch', 'example_sq', 'second_moment'
  ] = 'extra_pass'
  """Squared gradients that make the Fisher diagonal: of every batch in one more
  pass ('extra_pass'), of the steps of the last epoch ('last_epoch'), or of
  single sequences ('example_sq'); or AdamW's second moment, its bias corrected,
  at no cost ('second_moment')."""
  fisher_reduction: Literal['sum', 'mean'] = 'sum'
  """Reduction over a client's batches: 'sum' as printed in the paper, or
  'mean'. 'second_moment' is a mean: leave it at 'sum'."""
  fisher_normalization: Literal['none', 'tensor_mean'] = setting(
    'none', read_with={'fisher_mix': (None,)}
  )
  """'tensor_mean' divides every tensor of a client's diagonal by its mean, each
  layer of a transformer by itself, so that clients who fit their data count as
  much as others. Not in the paper."""
  fisher_granularity: Literal['element', 'input', 'output', 'tensor'] = (
    'element'
  )
  """Unit that has a weight of its own: every element (the paper's), every input
  or output unit of a matrix, or every tensor. F^p is averaged over the elements
  of a unit, each layer of a transformer by itself. A unit of a convolution is a
  channel; the tied token embedding maps hidden units to tokens. Biases and
  norms keep their elements, except with 'tensor'. Beside the delta clients send
  some 1/width of a model, or a number per tensor, in place of a whole one."""
  relative_floor: float = number(1e-8, at_least=0)
  """Damping: fraction of its tensor's mean that is added to every weight of a
  coordinate, >= 0. Layers of a transformer share one mean. Where no client has
  a gradient, a client weighs as much as this mean, not as in FedAvg."""
  fisher_power: float = number(1.0, at_least=0, at_most=1)
  """p, in [0, 1]: clients are weighed by F^p. 1: the paper's; 0: FedAvg, and no
  Fisher diagonal is computed."""
  fisher_mix: float | None = number(None, at_least=0, at_most=1)
  """q, in [0, 1]: clients are weighed by 1 - q plus q times F^p, divided by its
  mean over the tensor, each layer of a transformer by itself.
  `plain_mean_fraction` mixes means instead, and sends one model more. 0:
  FedAvg. None: by F^p."""
  fisher_cap: float | None = number(
    None, at_least=1, read_with={'fisher_mix': SET}
  )
  """c, >= 1: bound on F^p divided by its mean, and so on a client's influence.
  None: no bound."""
  plain_mean_fraction: float = number(0.0, at_least=0, at_most=1)
  """s, in [0, 1]: s times FedAvg's mean plus 1 - s times the Fisher-weighted
  one. 0: the paper's; 1: FedAvg. A client moves a coordinate by at most s w_i /
  sum w + 1 - s of its delta."""
  plain_mean_tensors: Literal['none', 'logits'] = 'none'
  """Tensors that take FedAvg's mean: none, or those that make a language
  model's logits. Its token embedding does so as a whole, as it is tied to the
  output."""

  def __post_init__(self):
    super().__post_init__()
    if self.fisher_granularity == 'tensor':
      expected = (
        ('algorithm.fisher_normalization', 'none'),
        ('algorithm.fisher_mix', None),
      )
      because = (
        "with fisher_granularity 'tensor', or clients would weigh the same"
      )
      found = types.SimpleNamespace(algorithm=self)
      if problems := settings_unlike(found, expected, because):
        raise ConfigError(problems)

  @property
  def weighs_coordinates(self) -> bool:
    """Whether anything is left of the Fisher weights; if not, it is FedAvg."""
    has_weights = self.fisher_power > 0 and self.fisher_mix != 0
    return has_weights and self.plain_mean_fraction < 1

  # A client: the squares (`_add`), a_i (`_weights`), the delta.

  def observer(self, start):
    if self.fisher_estimator != 'last_epoch' or not self.weighs_coordinates:
      return None
    return _local_training.GradientObserver(
      self._no_squares(start),
      lambda squares, gradients, num_rows: _add(squares, gradients),
    )

  def make_update(self, client):
    if not self.weighs_coordinates:
      return client.model_delta()
    squares = self._squares(client)
    delta, counts = client.model_delta(after=squares)
    is_rounded = client.quantize and self.fisher_granularity == 'element'

    def weights_of(total, axes):
      if isinstance(total, tuple):
        return ()
      a = self._weights(total, squares.num_batches, *axes)
      return compression.logarithmic(a) if is_rounded else a

    a = tuple(map(weights_of, squares.sums, _axes(client.start)))
    return _weighted_mean.Weighted(delta, a), counts

  def _squares(self, client):
    """Returns the sums of g_b^2.

    Those of an extra pass are of the data loss at the trained weights, without
    dropout and augmentation, as in algorithm 2.
    """
    local, dataset = client.local, client.local.dataset
    micro_batch_size = client.micro_batch_size
    if self.fisher_estimator == 'last_epoch':
      return local.gradient_sums
    if self.fisher_estimator == 'second_moment':
      return self._second_moment(client)
    if self.fisher_estimator == 'example_sq':
      dataset, micro_batch_size = dataset.unbatch().batch(1), None

    def add(squares, batch):
      found = _gradients.batch_gradients(
        client.start.model,
        local.trainable,
        client.start.non_trainable,
        batch,
        training=False,
        micro_batch_size=micro_batch_size,
      )
      return _add(squares, found.data)

    return fold(dataset, self._no_squares(client.start), add)

  def _no_squares(self, start):
    """Returns the sums over no batches."""
    zeros = tuple(
      () if is_plain else tf.zeros(w.shape)
      for w, is_plain in zip(start.trainable, self._plain(start), strict=True)
    )
    return Squares(zeros, tf.constant(0, tf.int64))

  def _second_moment(self, client):
    """Returns v / (1 - beta_2^t) after t steps, as the square of one batch.

    It is a mean of the squared gradients of local training, with later ones
    weighing more: g^2 after one step, 0 without a step.
    """
    adam = client.local.optimizer_state
    beta_2 = tf.cast(adam['beta_2'], tf.float32)
    correction = 1.0 - tf.pow(beta_2, tf.cast(adam['step'], tf.float32))

    def mean(v, is_plain):
      v = tf.cast(v, tf.float32)
      return () if is_plain else tf.math.divide_no_nan(v, correction)

    means = map(mean, adam['preconditioner'], self._plain(client.start))
    return Squares(tuple(means), tf.constant(1, tf.int64))

  def _plain(self, start):
    """Returns a flag per tensor: whether it takes FedAvg's mean."""
    if self.plain_mean_tensors == 'logits':
      return start.spec.makes_logits
    return [False] * len(start.trainable)

  def _weights(self, f, num_batches, input_axis, is_stacked):
    """Returns a_i of one tensor; an averaged axis stays, of length 1."""
    if self.fisher_reduction == 'mean':
      f = tf.math.divide_no_nan(f, tf.cast(num_batches, tf.float32))
    if self.fisher_power != 1:
      # Other than a power, the root is exact to the last bit.
      p = self.fisher_power
      f = tf.sqrt(f) if p == 0.5 else tf.pow(f, p)
    averaged = self.averaged_axes(f.shape.rank, input_axis, is_stacked)
    if averaged:
      f = tf.reduce_mean(f, averaged, keepdims=True)
    q, c = self.fisher_mix, self.fisher_cap
    if self.fisher_normalization == 'tensor_mean' or q is not None:
      layer_axes = list(range(1, f.shape.rank)) if is_stacked else None
      mean = tf.reduce_mean(f, layer_axes, keepdims=is_stacked)
      f = tf.math.divide_no_nan(f, mean)
    if c is not None:
      f = tf.where(f > c, c, f)  # Not `minimum`, which may hide a NaN.
    return f if q is None else 1.0 - q + q * f

  # The server.

  def aggregation(self):
    if not self.weighs_coordinates:
      return None
    return _weighted_mean.WeightedMean(
      self.relative_floor, self.plain_mean_fraction
    )

  def build(self, model, **training):
    """Builds FedFish; 'logits' needs a ModelSpec, 'second_moment' an Adam."""
    is_read = self.fisher_mix is not None or self.fisher_cap is None
    require(is_read, 'fisher_cap', 'None without fisher_mix', self.fisher_cap)
    reads_data = self.weighs_coordinates and training.get('local_privacy')
    is_noised = self.fisher_estimator == 'last_epoch' or not reads_data
    wanted = "'last_epoch' with local_privacy: others read data without noise"
    require(is_noised, 'fisher_estimator', wanted, self.fisher_estimator)
    if self.fisher_estimator == 'second_moment':
      optimizer = training['client_optimizer']
      state = optimizer.initialize(tf.TensorSpec([], tf.float32))
      has_moment = isinstance(state, dict) and 'preconditioner' in state
      require(has_moment, 'client_optimizer', 'an Adam', optimizer)
    return super().build(model, **training)

  # What a plan reads without TensorFlow.

  def averaged_axes(
    self, rank: int, input_axis: int | None, is_stacked: bool
  ) -> tuple[int, ...]:
    """Returns the axes of a tensor along which F^p is averaged.

    Args:
      rank: Number of axes of the tensor.
      input_axis: Axis of a matrix with its inputs, that of its outputs being
        the other one of the last two. None: the tensor is no matrix.
      is_stacked: Whether the first axis is that of the layers.
    """
    kept = {0} if is_stacked else set()
    if self.fisher_granularity != 'tensor':
      if self.fisher_granularity == 'element' or input_axis is None:
        return ()
      output_axis = 2 * rank - 3 - input_axis
      is_input = self.fisher_granularity == 'input'
      kept.add(input_axis if is_input else output_axis)
    return tuple(axis for axis in range(rank) if axis not in kept)

  def _shapes(self, config):
    """Yields the shapes of a tensor and of its a_i, (0,) where none is sent."""
    shape = config.model_shape()
    for (name, sizes), *axes in zip(
      weight_shapes(shape).items(),
      input_axes(shape),
      are_stacked(shape),
      strict=True,
    ):
      is_plain = self.plain_mean_tensors == 'logits' and name in LOGITS_TENSORS
      averaged = self.averaged_axes(len(sizes), *axes)
      of_a = tuple(1 if i in averaged else n for i, n in enumerate(sizes))
      yield sizes, (0,) if is_plain or not self.weighs_coordinates else of_a

  def traffic(self, config):
    """Counts the sums: w a delta, w a and, with s, w delta where a is sent."""
    num_weights, num_sent = 0, 0
    for sizes, of_fisher in self._shapes(config):
      num_fishers, size = math.prod(of_fisher), math.prod(sizes)
      is_mixed = self.plain_mean_fraction and num_fishers
      num_weights += size
      num_sent += size + num_fishers + (size if is_mixed else 0)
    return Traffic(uplink=num_sent / num_weights)

  def quantized_extra_bytes(self, config):
    """Returns the bytes of a; of elements they are quantized."""
    shapes = [shape for _, shape in self._shapes(config)]
    if self.fisher_granularity == 'element':
      return compression.packed_bytes(shapes, compression.LOGARITHM_BITS)
    return 4 * sum(map(math.prod, shapes))

  def cost(self, config):
    is_free = self.fisher_estimator == 'second_moment'
    if is_free or not self.weighs_coordinates:
      return ClientCost()
    # The sums of squares, and the pass in which they are formed.
    num_passes = int(self.fisher_estimator != 'last_epoch')
    return ClientCost(models_held=1, passes_after_training=num_passes)

  def columns(self, config):
    name = 'num_overflowing_clients'
    column = Column(f'train/{name}', ('aggregator', name))
    return (column,) if self.weighs_coordinates else ()

  def problems(self, config):
    problems = []
    if self.fisher_estimator == 'second_moment':
      expected = (
        ('algorithm.fisher_reduction', 'sum'),
        ('client_work.optimizer', 'adamw'),
        ('client_work.max_gradient_norm', None),
        ('client_work.keeps_optimizer_state', False),
      )
      because = "with fisher_estimator 'second_moment'"
      problems += settings_unlike(config, expected, because)
    if config.local_privacy.is_on and self.weighs_coordinates:
      expected = [('algorithm.fisher_estimator', 'last_epoch')]
      because = 'with local_privacy, as others read data without noise'
      problems += settings_unlike(config, expected, because)
    if config.data.holds_images:
      expected = [('algorithm.plain_mean_tensors', 'none')]
      because = f'with corpus {config.data.corpus!r}, which is no text'
      problems += settings_unlike(config, expected, because)
    return problems


def _add(squares, gradients):
  """Adds g_b^2 of one batch, squared in float32 whatever the dtype of g_b."""
  sums = tuple(
    ()
    if isinstance(total, tuple)
    else total + tf.square(tf.cast(g, tf.float32))
    for total, g in zip(squares.sums, gradients, strict=True)
  )
  return Squares(sums, squares.num_batches + 1)


def _axes(start):
  """Returns (input_axis, is_stacked) of the trainable tensors."""
  ranks = [w.shape.rank for w in start.trainable]
  stacked = getattr(start.spec, 'is_stacked', None) or [False] * len(ranks)
  inputs = getattr(start.spec, 'input_axes', None) or [
    rank - 2 if rank - is_stacked >= 2 else None
    for rank, is_stacked in zip(ranks, stacked, strict=True)
  ]
  return zip(inputs, stacked, strict=True)
