"""Freed memory goes back to the system where it is much."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import freed_memory


def test_only_for_a_large_model(monkeypatch):
  calls = []

  class Library:
    def mallopt(self, *arguments):
      calls.append(arguments)

    def malloc_trim(self, *arguments):
      calls.append(arguments)

  monkeypatch.setattr(freed_memory, '_c_library', Library)
  monkeypatch.setattr(freed_memory, 'MIN_MODEL_BYTES', 48)
  # 2 * 3 float32 and 2 int64: 24 + 16 = 40 bytes; a string has no size.
  small = [tf.zeros([2, 3]), tf.zeros([2], tf.int64), tf.constant('text')]
  freed_memory.return_freed_memory(small)
  assert calls == []
  # And 2 float32 more: 48.
  freed_memory.return_freed_memory([*small, tf.zeros([2])])
  # M_MMAP_THRESHOLD is -3 in malloc.h.
  assert calls == [(-3, 2**20), (0,)]


def test_before_a_large_model_is_made(monkeypatch):
  calls = []

  class Library:
    def mallopt(self, *arguments):
      calls.append(arguments)

  monkeypatch.setattr(freed_memory, '_c_library', Library)
  # 64 Mi float32 are 256 MiB.
  types = [
    tff.TensorType(np.float32, [2**26 - 1]),
    tff.TensorType(np.str_),
    tff.TensorType(np.int32, [None]),
    tff.SequenceType(np.float32),
  ]
  assert not freed_memory.return_large_buffers(types)
  assert calls == []
  assert freed_memory.return_large_buffers([*types, tff.TensorType(np.int32)])
  assert calls == [(-3, 2**20)]


def test_there_are_functions_to_call():
  # In glibc, the C library of the platform that is supported.
  assert freed_memory._c_library().malloc_trim(0) in (0, 1)
