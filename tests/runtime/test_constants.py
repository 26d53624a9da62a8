"""Computations without parameters."""

import gc
import os

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime.constants import NoArgumentFunction, RepeatedConstants

# 48 MB of float32: more than what the allocator keeps of freed memory.
_LARGE = 12_000_000


def _proto(make):
  return tff.tensorflow.computation(make).to_building_block().proto


def _resident_bytes():
  gc.collect()
  return psutil.Process(os.getpid()).memory_info().rss


class TestRepeatedConstants:
  def test_values_shapes_and_types(self):
    # Large: of one value, and not; small; a string.
    make = RepeatedConstants(
      _proto(
        lambda: (
          tf.fill([300, 100], tf.constant(-2.5, tf.float64)),
          tf.range(30_000),
          tf.constant([1, 0], tf.int64),
          tf.constant('text'),
        )
      )
    )
    for _ in range(2):
      uniform, counting, small, text = make()
      assert (uniform.shape, uniform.dtype) == ((300, 100), tf.float64)
      assert set(uniform.numpy().flat) == {-2.5}
      np.testing.assert_array_equal(counting, np.arange(30_000))
      assert small.numpy().tolist() == [1, 0]
      assert text.numpy() == b'text'

  def test_large_zeros_are_not_kept(self):
    make = RepeatedConstants(_proto(lambda: tf.zeros([_LARGE])))
    make()
    before = _resident_bytes()
    zeros = make()
    # Written to, so that the pages exist.
    assert float(tf.reduce_sum(zeros[0] + 1)) > 0
    del zeros
    assert _resident_bytes() - before < 2 * _LARGE


class TestNoArgumentFunction:
  @pytest.mark.parametrize('size', [3, _LARGE])
  def test_runs_at_every_call(self, size):
    draw = NoArgumentFunction(_proto(lambda: tf.random.uniform([size])))
    assert float(draw([])[0][0]) != float(draw([])[0][0])

  @pytest.mark.parametrize('size, is_kept', [(3, True), (_LARGE, False)])
  def test_only_a_small_function_is_kept(self, size, is_kept):
    function = NoArgumentFunction(_proto(lambda: tf.zeros([size])))
    assert function([])[0].shape == (size,)
    assert (function._function is not None) == is_kept
