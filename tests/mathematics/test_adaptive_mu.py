"""FedProx's mu, followed over printed losses and through what may go wrong."""

import numpy as np
import pytest

from tff_fedfish.mathematics import adaptive_mu

_LOSSES = (1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.2)


def _states(losses, mu, mu_step=0.1, patience=5):
  state, states = adaptive_mu.initial_state(mu), []
  for loss in losses:
    state = adaptive_mu.next_mu(
      state, np.float32(loss), mu_step=mu_step, patience=patience
    )
    states.append({name: value.numpy() for name, value in state.items()})
  return states


def _mus(*arguments, **options):
  return [state['mu'] for state in _states(*arguments, **options)]


@pytest.mark.parametrize(
  ('first', 'expected'),
  [
    # Round 5 is the fifth fall, round 1 being one; round 8 rises; the tie of
    # round 9 is a fall, the first of the five that end with round 13.
    (1, (1, 1, 1, 1, 0.9, 0.9, 0.9, 1, 1, 1, 1, 1, 0.9, 1)),
    (0, (0, 0, 0, 0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 0.1)),
  ],
)
def test_course_of_mu(first, expected):
  np.testing.assert_allclose(_mus(_LOSSES, first), expected, atol=1e-6)


@pytest.mark.parametrize('loss', [np.nan, np.inf, -np.inf])
def test_loss_that_is_not_finite_is_a_rise_and_is_forgotten(loss):
  *_, fallen, broken, after = _states([2, 1, loss, 0.5], 1, patience=3)
  np.testing.assert_allclose(broken['mu'], 1.1, rtol=1e-6)
  assert (broken['previous_loss'], broken['num_falls']) == (1, 0)
  assert fallen['num_falls'] == 2
  # 0.5 is compared with 1: one fall of three.
  np.testing.assert_allclose(after['mu'], 1.1, rtol=1e-6)
  assert (after['previous_loss'], after['num_falls']) == (0.5, 1)


def test_step_and_patience():
  # Two falls: 1 - 0.25; a rise: + 0.25.
  found = _mus([3, 2, 1, 4], 1, mu_step=0.25, patience=2)
  assert found == [1, 0.75, 0.75, 1]


def test_mu_stays_above_zero():
  assert _mus([3, 2], 0.25, mu_step=1.0, patience=1) == [0, 0]
