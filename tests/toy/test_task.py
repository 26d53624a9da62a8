"""The clients' data."""

import dataclasses

import numpy as np
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.toy import one_round
from tff_fedfish.toy.results import SUPPORTS, ToySettings

_SETTINGS = ToySettings()


@pytest.mark.parametrize('support', SUPPORTS)
def test_inputs_fill_their_intervals(support):
  inputs, targets = one_round.draw_clients(0, support, _SETTINGS)
  assert inputs.shape == targets.shape == (2, 100)
  assert inputs.dtype == targets.dtype == np.float32
  for x, (low, high) in zip(inputs, SUPPORTS[support], strict=True):
    assert x.min() >= low and x.max() <= high
    # That 100 uniform draws leave a tenth at an end empty: 0.9^100 = 3e-5.
    assert x.min() < low + 0.1 * (high - low)
    assert x.max() > high - 0.1 * (high - low)


def test_overlap_is_what_the_names_say():
  def overlap(support):
    (low_1, high_1), (low_2, high_2) = SUPPORTS[support]
    return min(high_1, high_2) - max(low_1, low_2)

  # [-2, 2] twice; [-0.5, 0.5]; a gap from -0.5 to 0.5.
  assert [overlap(name) for name in ('full', 'partial', 'none')] == [4, 1, -1]


def test_targets_without_noise_are_the_function():
  settings = dataclasses.replace(_SETTINGS, noise=0.0)
  inputs, targets = one_round.draw_clients(3, 'partial', settings)
  np.testing.assert_allclose(
    targets, np.sin(3 * inputs) + 0.3 * inputs, atol=1e-5
  )
  # sin(1.5) + 0.15 = 0.9974950 + 0.15; odd.
  np.testing.assert_allclose(
    one_round.target(np.array([0.0, 0.5, -0.5])), [0, 1.1474950, -1.1474950]
  )


def test_noise_has_the_standard_deviation_asked_for():
  settings = dataclasses.replace(_SETTINGS, noise=0.05, num_examples=10_000)
  inputs, targets = one_round.draw_clients(1, 'full', settings)
  noise = targets - one_round.target(inputs)
  # Standard errors: 0.05 / sqrt(10,000) = 0.0005, and 0.05 / sqrt(20,000).
  np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.002)
  np.testing.assert_allclose(noise.std(axis=1), 0.05, atol=0.0015)


def test_supports_of_one_seed_differ_in_nothing_else():
  full, full_targets = one_round.draw_clients(5, 'full', _SETTINGS)
  none, none_targets = one_round.draw_clients(5, 'none', _SETTINGS)
  # Client 1: [-2, 2] is 4 wide, [-2, -0.5] is 1.5 wide.
  np.testing.assert_allclose((full[0] + 2) / 4, (none[0] + 2) / 1.5, atol=1e-6)
  np.testing.assert_allclose(
    full_targets - one_round.target(full),
    none_targets - one_round.target(none),
    atol=1e-5,
  )  # fmt: skip


def test_draws_differ_by_client_and_seed_and_by_nothing_else():
  inputs, _ = one_round.draw_clients(0, 'full', _SETTINGS)
  again, _ = one_round.draw_clients(0, 'full', _SETTINGS)
  other, _ = one_round.draw_clients(1, 'full', _SETTINGS)
  np.testing.assert_array_equal(inputs, again)
  assert len(np.intersect1d(inputs[0], inputs[1])) == 0
  assert len(np.intersect1d(inputs, other)) == 0


def test_no_seeds():
  with pytest.raises(
    UserError, match=r'^`--num_seeds` must be at least 1, found 0\. Say how '
  ):
    ToySettings(num_seeds=0)
