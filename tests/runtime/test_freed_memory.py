"""Freed memory goes back to the system where it is much."""

import tensorflow as tf

from tff_fedfish.runtime import freed_memory


def test_only_for_a_large_model(monkeypatch):
  calls = []

  class Library:
    def mallopt(self, *arguments):
      calls.append(arguments)

    def malloc_trim(self, *arguments):
      calls.append(arguments)

  monkeypatch.setattr(freed_memory, '_c_library', Library)
  monkeypatch.setattr(freed_memory, '_MIN_MODEL_BYTES', 48)
  # 2 * 3 float32 and 2 int64: 24 + 16 = 40 bytes; a string has no size.
  small = [tf.zeros([2, 3]), tf.zeros([2], tf.int64), tf.constant('text')]
  freed_memory.return_freed_memory(small)
  assert calls == []
  # And 2 float32 more: 48.
  freed_memory.return_freed_memory([*small, tf.zeros([2])])
  # M_MMAP_THRESHOLD is -3 in malloc.h.
  assert calls == [(-3, 4 * 2**20), (0,)]


def test_there_are_functions_to_call():
  # In glibc, the C library of the platform that is supported.
  assert freed_memory._c_library().malloc_trim(0) in (0, 1)
