"""Makes the C library return freed memory to the system, where it is much."""

import ctypes
import functools
import math

import tensorflow as tf

# Of a model that a client is sent. Below, what is kept is little, and to take
# it anew would cost more than 1 % of a client's work.
_MIN_MODEL_BYTES = 256 * 2**20
# Buffers from this size on are returned when they are freed.
_MIN_BUFFER_BYTES = 4 * 2**20
_M_MMAP_THRESHOLD = -3


def return_freed_memory(broadcast: list[tf.Tensor]) -> None:
  """Returns what was freed, and from now on large buffers as they are freed.

  glibc keeps freed buffers below 32 MiB for later, in pieces that other
  buffers do not fit into: gigabytes with a model of 335 million weights.
  Without effect for small models, and for other C libraries.

  Args:
    broadcast: What a client is sent; numeric tensors count.
  """
  num_bytes = sum(
    math.prod(tensor.shape) * tensor.dtype.size
    for tensor in broadcast
    if tensor.dtype != tf.string
  )
  if num_bytes < _MIN_MODEL_BYTES:
    return
  library = _c_library()
  if hasattr(library, 'malloc_trim'):
    library.mallopt(_M_MMAP_THRESHOLD, _MIN_BUFFER_BYTES)
    library.malloc_trim(0)


@functools.cache
def _c_library():
  return ctypes.CDLL(None)
