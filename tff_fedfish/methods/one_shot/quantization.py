"""Uniform quantization of tensors, and the bits that it takes.

Jhunjhunwala et al. (2024), FedFisher, appendix C:

  Q(v) = m round(l v / m) / l,   m = max |v|,   l = 2^s - 1

  letter  name      meaning
  v       v         a tensor, such as the weights of one layer
  s       num_bits  bits of an entry without its sign
  m       -         the scale, sent beside the entries as a float32

TensorFlow is imported where it computes, so counting bits is free.
"""

import typing

from tff_fedfish.errors import require

if typing.TYPE_CHECKING:
  import tensorflow as tf

MODEL_BITS = 15
"""s of the authors' for models and Fisher diagonals: 16 bits with the sign."""

_SCALE_BITS = 32
# More are not to be had from float32, which has as many digits.
_MAX_BITS = 23


def quantize(
  v: 'tf.Tensor', num_bits: int, *, is_stacked: bool = False
) -> 'tf.Tensor':
  """Returns Q(v), the nearest of 2^(s + 1) - 1 evenly spaced values.

  Args:
    v: Float32 tensor of any shape, finite.
    num_bits: s, from 1 to 23.
    is_stacked: Whether v holds the tensors of several layers along its first
      axis: each has a scale of its own.

  Returns:
    Float32, same shape. An entry is off by at most m / (2 l) and rounding; ties
    go to the even multiple. A tensor of zeros, or one that float32 counts as
    zeros (below 1.2e-38), stays as it is.

  Raises:
    ValueError: If `num_bits` is out of range.
  """
  import tensorflow as tf

  require(1 <= num_bits <= _MAX_BITS, 'num_bits', 'from 1 to 23', num_bits)
  levels = float(2**num_bits - 1)
  axes = list(range(1, len(v.shape))) if is_stacked else None
  m = tf.reduce_max(tf.abs(v), axes, keepdims=is_stacked)
  # In this order no product exceeds m.
  quantized = m * (tf.round(levels * (v / m)) / levels)
  return tf.where(m > 0, quantized, v)


def quantized_bits(num_entries: int, num_bits: int) -> int:
  """Returns the bits of a quantized tensor: s + 1 an entry, and 32 for m."""
  return num_entries * (num_bits + 1) + _SCALE_BITS
