"""Epsilon of DP-SGD, compared with the accountant that it is made with."""

import dp_accounting
import pytest
from dp_accounting import rdp
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.rounds import privacy


def _expected(rate, noise_multiplier, num_steps, delta):
  accountant = rdp.RdpAccountant()
  step = dp_accounting.GaussianDpEvent(noise_multiplier)
  accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, step), num_steps)
  return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
  'inputs',
  [
    (50 / 2666, 1.0, 5300, 1e-5),
    (50 / 2666, 2.0, 5300, 1e-5),
    (1.0, 1.0, 10, 1e-5),
    (0.3, 0.7, 1, 1e-3),
  ],
)
def test_epsilon_is_that_of_dp_accounting(inputs):
  assert privacy.epsilon(*inputs) == pytest.approx(_expected(*inputs), rel=1e-9)


def test_published_setting():
  # n = 2,666, B = 50, 100 epochs of 53 steps.
  assert privacy.epsilon(50 / 2666, 1.0, 5300, 1e-5) == pytest.approx(
    9.7628, abs=1e-4
  )
  assert privacy.epsilon(50 / 2666, 2.0, 5300, 1e-5) == pytest.approx(
    3.3467, abs=1e-4
  )


@given(
  st.sampled_from([0.01, 0.1, 0.5, 1.0]),
  st.sampled_from([0.5, 1.0, 2.0, 8.0]),
  st.integers(1, 500),
)
def test_epsilon_is_monotone(rate, noise_multiplier, num_steps):
  found = privacy.epsilon(rate, noise_multiplier, num_steps, 1e-5)
  assert privacy.epsilon(rate, noise_multiplier, 2 * num_steps, 1e-5) > found
  assert privacy.epsilon(rate, 2 * noise_multiplier, num_steps, 1e-5) < found


def test_no_steps_cost_nothing():
  assert privacy.epsilon(0.1, 1.0, 0, 1e-5) == 0


def test_so_much_noise_that_the_divergence_is_rounded():
  assert privacy.epsilon(1e-6, 1e4, 10**6, 1e-5) == pytest.approx(0, abs=0.1)


def test_rate_of_a_client_with_fewer_rows_than_a_batch():
  assert privacy.sampling_rate(8, 5) == 1
  assert privacy.sampling_rate(8, 32) == 0.25


@pytest.mark.parametrize(
  ('inputs', 'words'),
  [
    ((1.5, 1.0, 1, 1e-5), r'`rate` must be in \[0, 1\], found 1.5'),
    ((0.5, 0.0, 1, 1e-5), '`noise_multiplier` must be a number above 0'),
    ((0.5, 1.0, -1, 1e-5), '`num_steps` must be at least 0, found -1'),
    ((0.5, 1.0, 1, 1.0), '`delta` must be between 0 and 1, found 1.0'),
  ],
)
def test_refused(inputs, words):
  with pytest.raises(ValueError, match=words):
    privacy.epsilon(*inputs)
