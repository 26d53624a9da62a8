"""Quantized deltas: levels, draws, what stays as it is; rounds of FedFish."""

import collections

import linear_models
import linear_rounds
import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish import build_fed_avg, build_fed_fish
from tff_fedfish.rounds.compression import logarithmic, packed_bytes, quantize


def _quantized(values, bits, seed=(1, 2)):
  tensor = tf.constant(values, tf.float32)
  (found,) = quantize([tensor], bits, tf.constant(seed))
  return found.numpy()


@pytest.mark.parametrize(('bits', 'num_levels'), [(8, 127), (4, 7)])
def test_the_mean_of_many_draws_is_the_value(bits, num_levels):
  # A huge value sets the scale of its row.
  row = np.array([0.3, -0.021, 1e-3, 0.0, -0.77, 1000.0], np.float32)
  for values in (row, row[:-1]):
    found = _quantized(np.tile(values, (10_000, 1)), bits)
    step = np.abs(values).max() / num_levels
    places = np.abs(values / step) % 1
    error = step * np.sqrt(places * (1 - places) / 10_000)
    gap = np.abs(found.mean(0, dtype=np.float64) - values)
    assert (gap <= 3 * error + 1e-5 * np.abs(values)).all()
    levels = np.unique(found / step)
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
    assert len(levels) <= 2 * num_levels + 1


def test_rows_and_blocks_have_scales_of_their_own():
  values = np.zeros((3, 3_000), np.float32)
  values[0, :1_500], values[0, 1_500:] = 1e-6, 7.0
  values[1, 5] = np.nan
  found = _quantized(values, 4)
  # Every value of a block is its maximum; two blocks of 1,500 values.
  np.testing.assert_array_equal(found[0], values[0])
  assert np.isnan(found[1, 5])
  assert not found[2].any()
  assert _quantized(-2.5, 4) == np.float32(-2.5)
  # 9,000 values in pairs, and two scales a row; 3 values and a scale.
  assert packed_bytes([(3, 3_000), (3,), ()], 4) == 4_500 + 24 + 6 + 5


def test_rounding_is_a_function_of_the_seed_and_the_tensor():
  values = np.random.RandomState(3).normal(size=(5, 40))
  np.testing.assert_array_equal(_quantized(values, 4), _quantized(values, 4))
  assert (_quantized(values, 4) != _quantized(values, 4, seed=(1, 3))).any()
  first, second = quantize([tf.constant(values)] * 2, 4, tf.constant((1, 2)))
  assert (first != second).numpy().any()


def test_weights_by_logarithm():
  exponents = np.array([0, 0.06, 1.3, 17.77, 31.8, 31.83, np.inf, np.inf])
  values = (3 * 2.0**-exponents).astype(np.float32)
  found = logarithmic(tf.constant([values, 0 * values])).numpy()
  assert found[0, 0] == 3
  np.testing.assert_allclose(found[0, :5], values[:5], rtol=2 ** (1 / 16) - 1)
  assert not found[0, 5:].any() and not found[1].any()
  values[1] = np.nan
  assert np.isnan(logarithmic(tf.constant(values)).numpy()[1])


def _round(build, bits, clients, **options):
  """Returns the server's step, and what `trained_models` gives."""
  process = linear_rounds.process(
    build, delta_bits=bits, num_local_epochs=2, **options
  )
  if bits < 32:
    clients = [
      collections.OrderedDict(
        data=data,
        rounding_seed=tf.data.Dataset.from_tensors(tf.constant([7, i])),
      )
      for i, data in enumerate(clients)
    ]
  state = process.initialize()
  weights, output = linear_rounds.trained(process, clients)
  return -weights, process.trained_models(state, clients), output.metrics


@pytest.mark.parametrize('granularity', ['element', 'input'])
def test_fed_fish_stays_between_the_deltas_that_the_server_reads(granularity):
  clients = linear_rounds.datasets(linear_models.three_clients())
  options = dict(fisher_granularity=granularity)
  step, trained, _ = _round(build_fed_fish, 4, clients, **options)
  exact_step, exact, _ = _round(build_fed_fish, 32, clients, **options)
  deltas, exact_deltas = (
    [linear_rounds.flat(c['update'].delta) for c in found]
    for found in (trained, exact)
  )
  assert (step <= np.max(deltas, 0) + 1e-6).all()
  assert (step >= np.min(deltas, 0) - 1e-6).all()
  assert np.abs(step - exact_step).max() > 1e-4
  # The tensors of two weights have one at its scale, and one level apart.
  for found, exact_delta in zip(deltas, exact_deltas, strict=True):
    np.testing.assert_allclose(found, exact_delta, atol=np.abs(found).max() / 7)
  # Clients train as before.
  for found, wanted in zip(trained, exact, strict=True):
    for weight, other in zip(
      found['trainable'], wanted['trainable'], strict=True
    ):
      np.testing.assert_array_equal(weight, other)


def test_a_client_without_a_seed_is_an_error():
  process = linear_rounds.process(build_fed_avg, delta_bits=8)
  (data,) = linear_rounds.datasets(linear_models.three_clients()[:1])
  no_seed = tf.data.Dataset.from_tensors(tf.constant([7, 1])).take(0)
  client = collections.OrderedDict(data=data, rounding_seed=no_seed)
  with pytest.raises(tf.errors.InvalidArgumentError, match='was empty'):
    process.next(process.initialize(), [client])


def test_a_client_that_is_not_finite_is_left_out():
  clients = linear_rounds.datasets(linear_models.three_clients())
  x, y = linear_models.three_clients()[1]
  broken = linear_models.batches(x * np.nan, y, 2)
  step, _, metrics = _round(build_fed_avg, 8, [clients[0], broken])
  assert np.isfinite(step).all() and step.any()
  assert metrics['client_work']['clients']['num_non_finite_clients'] == 1
