"""Deltas of 8 or 4 bits a weight, and the bytes that they take.

The last axis of a tensor is a row of values; rows are divided into blocks of at
most 2,048 values. A client sends of each block v its scale, a float32, and an
integer q_j of each value:

  q_j = floor(l v_j / m + u_j),  m = max |v|,  l = 2^(bits - 1) - 1

with u_j uniform in [0, 1): the server reads m q_j / l, whose mean is v_j.

Weights f >= 0 of single elements take 8 bits, without draws: 0, or the nearest
of m 2^(-k / 8), k = 0 to 254. They are off by 4.4 % at most; below m 2^-31.8
they become 0.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from tff_fedfish.late import tf

FLOAT_BITS = 32
"""`aggregation.bits` of a delta that is sent as it is."""
LOGARITHM_BITS = 8
_MAX_BLOCK = 2_048
_FLOAT_BYTES = 4
_STEPS_PER_OCTAVE = 8
_MAX_STEPS = 2**LOGARITHM_BITS - 2


def packed_bytes(shapes: Iterable[Sequence[int]], bits: int) -> int:
  """Returns the bytes of tensors with a scale for each block."""
  return sum(
    math.ceil(math.prod(shape) * bits / 8)
    + _FLOAT_BYTES * math.prod(shape[:-1]) * _num_blocks(shape)
    for shape in shapes
  )


def quantize(
  tensors: Sequence['tf.Tensor'], bits: int, seed: 'tf.Tensor'
) -> tuple['tf.Tensor', ...]:
  """Returns deltas as the server reads them.

  Args:
    tensors: Float tensors. A value that is not finite stays as it is.
    bits: 8 or 4.
    seed: Int32 [2]; the rounding is a function of it.
  """
  num_levels = float(2 ** (bits - 1) - 1)

  def rounded(position):
    def of_blocks(v):
      m = tf.reduce_max(tf.abs(v), axis=-1, keepdims=True)
      scaled = num_levels * tf.math.divide_no_nan(v, m)
      low = tf.floor(scaled)
      # An int64 keeps both words of the seed, an int32 only one.
      own_seed = tf.random.experimental.stateless_fold_in(
        seed, tf.constant(position, tf.int64)
      )
      u = tf.random.stateless_uniform(tf.shape(v), own_seed, dtype=v.dtype)
      up = tf.cast(u < scaled - low, v.dtype)
      # In this order nothing overflows.
      return m * ((low + up) / num_levels)

    return of_blocks

  found = []
  for i, v in enumerate(tensors):
    # One tensor after another: each takes some copies of itself.
    with tf.control_dependencies(found[-1:]):
      found.append(_by_block(v, rounded(i)))
  return tuple(found)


def logarithmic(weights: 'tf.Tensor') -> 'tf.Tensor':
  """Returns weights >= 0 as the server reads them; see the module."""

  def of_blocks(f):
    m = tf.reduce_max(f, axis=-1, keepdims=True)
    octaves = tf.math.log(tf.math.divide_no_nan(f, m)) / math.log(2)
    steps = tf.round(-_STEPS_PER_OCTAVE * octaves)
    read = m * tf.pow(tf.constant(2, f.dtype), -steps / _STEPS_PER_OCTAVE)
    return tf.where(steps <= _MAX_STEPS, read, 0.0)

  return _by_block(weights, of_blocks)


def _num_blocks(shape):
  """Returns the blocks of a row; a scalar is a row of one value."""
  return math.ceil(shape[-1] / _MAX_BLOCK) if len(shape) else 1


def _by_block(tensor, read: Callable[['tf.Tensor'], 'tf.Tensor']):
  """Returns what `read` makes of a tensor's blocks, [blocks, values]."""
  shape = tensor.shape
  length, num_blocks = shape[-1] if shape.rank else 1, _num_blocks(shape)
  size = math.ceil(length / num_blocks)
  rows = tf.reshape(tensor, [-1, length])
  if padding := num_blocks * size - length:
    rows = tf.pad(rows, [[0, 0], [0, padding]])
  found = read(tf.reshape(rows, [-1, size]))
  found = tf.reshape(found, [-1, num_blocks * size])[:, :length]
  # What is not finite must remain so: its client is rejected.
  is_finite = tf.math.is_finite(tensor)
  return tf.where(is_finite, tf.reshape(found, shape), tensor)
