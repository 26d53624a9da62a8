"""Makes the C library return freed memory to the system, where it is much.

glibc keeps freed buffers below 32 MiB for later, in pieces that other buffers
do not fit into: gigabytes with a model of 335 million weights. Nothing here has
an effect for small models, or with other C libraries.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Of a model. Below it little is kept, and taking it again would cost more than
# 1 % of a client's work.
MIN_MODEL_BYTES = 256 * 2**20
# Buffers from this size on are returned when they are freed. The system clears
# what it gives again: with 168 million weights that took 23 of a round's 73
# processor seconds from 1 MiB on, 13 of 64 from 8 MiB on and 8 of 58 where the
# library was left alone, in 7.4, 7.6 and 8.3 GiB; with 335 million the peak is
# 13.7 GiB from 1 MiB on and 14.1 from 4 MiB on.
MIN_BUFFER_BYTES = 2**20
_M_MMAP_THRESHOLD = -3


def return_large_buffers(tensors: Sequence[Any]) -> bool:
  """From now on returns large buffers as they are freed.

  Best before the first large one is made: what the library has once kept, it
  goes on using.

  Args:
    tensors: What a model's worth of memory is about to be taken for: tensors,
      or their TFF types. Those that are not numeric do not count.

  Returns:
    Whether it is much.
  """
  num_bytes = sum(map(_num_bytes, tensors))
  is_much = num_bytes >= MIN_MODEL_BYTES and hasattr(_c_library(), 'mallopt')
  if is_much:
    _c_library().mallopt(_M_MMAP_THRESHOLD, MIN_BUFFER_BYTES)
  return is_much


def return_freed_memory(broadcast: list[tf.Tensor]) -> None:
  """Returns what was freed so far, and large buffers from now on.

  Nothing is done where what a client is sent is small.
  """
  if return_large_buffers(broadcast):
    _c_library().malloc_trim(0)


def _num_bytes(tensor) -> int:
  # A sequence has no dtype, and a size may be known only once it is computed.
  dtype = getattr(tensor, 'dtype', None)
  if dtype is None or tf.as_dtype(dtype) == tf.string:
    return 0
  num_entries = tf.TensorShape(tensor.shape).num_elements()
  return (num_entries or 0) * tf.as_dtype(dtype).size


@functools.cache
def _c_library():
  return ctypes.CDLL(None)
