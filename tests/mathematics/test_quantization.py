"""The uniform quantizer by hand, its bound, its bits."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from tff_fedfish.methods.one_shot.quantization import quantize, quantized_bits

_ANY_VECTOR = hypothesis_numpy.arrays(
  np.float32,
  st.integers(0, 7),
  elements=st.floats(
    allow_nan=False, allow_infinity=False, width=32, allow_subnormal=True
  ),
)


def test_stacked_tensors_have_a_scale_each():
  v = tf.constant([[0.5, -1], [0.26, 0], [0, 0]])
  # s = 2, l = 3: of the first (2/3, -1), as 1.5 rounds to 2; of the second its
  # own m = 0.26, of the third m = 0.
  found = quantize(v, 2, is_stacked=True)
  np.testing.assert_allclose(found, [[2 / 3, -1], [0.26, 0], [0, 0]])


def _quantize(values, num_bits):
  return quantize(tf.constant(values, tf.float32), num_bits).numpy()


def test_vector_v9():
  # m = 1, l = 3: 1.5, -3, 0.78, 0, 2.7 round to 2, -3, 1, 0, 3.
  found = _quantize([0.5, -1.0, 0.26, 0.0, 0.9], 2)
  np.testing.assert_allclose(found, [2 / 3, -1, 1 / 3, 0, 1], rtol=1e-7)


def test_the_scale_is_that_of_the_tensor():
  # m = 4, l = 3: 3/4 of each of -4, 3, 1, 0.5 is -3, 2.25, 0.75, 0.375.
  found = _quantize([[-4.0, 3.0], [1.0, 0.5]], 2)
  np.testing.assert_allclose(found, [[-4, 8 / 3], [4 / 3, 0]], rtol=1e-7)


@pytest.mark.parametrize(
  ('num_bits', 'half', 'expected'),
  # l = 1: 0.5 goes to 0. l = 3: 1.5 goes to 2. l = 7: 3.5 goes to 4.
  [(1, 0.5, 0.0), (2, 0.5, 2 / 3), (3, -0.5, -4 / 7)],
)
def test_ties_go_to_the_even_multiple(num_bits, half, expected):
  found = _quantize([half, 1.0], num_bits)
  np.testing.assert_allclose(found, [expected, 1.0], rtol=1e-7)


@hypothesis.given(_ANY_VECTOR, st.sampled_from([1, 2, 8, 15, 23]))
@hypothesis.settings(deadline=None, max_examples=200)
def test_no_entry_is_off_by_more_than_half_a_step(values, num_bits):
  found = _quantize(values, num_bits)
  m = float(np.max(np.abs(values), initial=0.0))
  # Half a step and, beyond the exact formula, float32's rounding. Below the
  # smallest normal number values may become 0.
  bound = m / (2 * (2**num_bits - 1)) + m * 2.0**-22 + 1.2e-38
  errors = np.abs(found.astype(np.float64) - values)
  assert np.all(errors <= bound)


@hypothesis.given(_ANY_VECTOR, st.sampled_from([1, 8, 15]))
@hypothesis.settings(deadline=None, max_examples=100)
def test_quantized_values_stay(values, num_bits):
  once = _quantize(values, num_bits)
  np.testing.assert_array_equal(_quantize(once, num_bits), once)
  largest = np.argmax(np.abs(values)) if values.size else []
  np.testing.assert_array_equal(once[largest], values[largest])


def test_the_largest_error_with_15_bits():
  values = np.linspace(-1, 1, 100_001, dtype=np.float32)
  error = np.abs(_quantize(values, 15).astype(np.float64) - values).max()
  # 1 / (2 * 32767)
  assert 1.52e-5 < error < 1.52593e-5 + 1e-7


@pytest.mark.parametrize('values', [np.zeros([2, 3]), np.zeros([0, 4])])
def test_zeros_and_nothing_stay(values):
  np.testing.assert_array_equal(_quantize(values, 15), values)


def test_the_same_in_a_graph():
  values = tf.constant([0.3, -0.7, 0.11])
  graph = tf.function(lambda v: quantize(v, 4))
  np.testing.assert_array_equal(graph(values), quantize(values, 4))


@pytest.mark.parametrize('num_bits', [0, 24])
def test_number_of_bits_is_checked(num_bits):
  with pytest.raises(ValueError, match='`num_bits` must be from 1 to 23, foun'):
    quantize(tf.constant([1.0]), num_bits)


def test_bits():
  # 10 entries of 15 bits and a sign, and a scale.
  assert quantized_bits(10, 15) == 192
  assert quantized_bits(0, 8) == 32
