"""FedProx's mu, followed over printed losses and through what may go wrong."""

import numpy as np
import pytest

from tff_fedfish.mathematics import adaptive_mu

_LOSSES = (1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.2)


def _states(losses, mu, rule, mu_step=0.1, patience=5):
  state, states = adaptive_mu.initial_state(mu), []
  for loss in losses:
    state = adaptive_mu.next_mu(
      state, np.float32(loss), rule=rule, mu_step=mu_step, patience=patience
    )
    states.append({name: value.numpy() for name, value in state.items()})
  return states


def _mus(*arguments, **options):
  return [state['mu'] for state in _states(*arguments, **options)]


@pytest.mark.parametrize(
  ('rule', 'first', 'expected'),
  [
    # Round 5 is the fifth fall, round 1 being one; round 8 rises; the tie of
    # round 9 is a fall, the first of the five that end with round 13.
    ('fl4health', 1, (1, 1, 1, 1, 0.9, 0.9, 0.9, 1, 1, 1, 1, 1, 0.9, 1)),
    ('fl4health', 0, (0, 0, 0, 0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 0.1)),
    # Rounds 2 to 6 fall; after the tie only the four of 10 to 13 do.
    ('strict', 1, (1, 1, 1, 1, 1, 0.9, 0.9, 1, 1, 1, 1, 1, 1, 1.1)),
    ('strict', 0, (0, 0, 0, 0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2)),
    # As 'strict', but the tie rises.
    ('reference', 1, (1, 1, 1, 1, 1, 0.9, 0.9, 1, *[1.1] * 5, 1.2)),
    ('reference', 0, (*[0] * 7, 0.1, *[0.2] * 5, 0.3)),
  ],
)
def test_course_of_mu(rule, first, expected):
  np.testing.assert_allclose(_mus(_LOSSES, first, rule), expected, atol=1e-6)


@pytest.mark.parametrize('rule', adaptive_mu.RULES)
@pytest.mark.parametrize('loss', [np.nan, np.inf, -np.inf])
def test_loss_that_is_not_finite_is_a_rise_and_is_forgotten(rule, loss):
  *_, fallen, broken, after = _states([2, 1, loss, 0.5], 1, rule, patience=3)
  np.testing.assert_allclose(broken['mu'], 1.1, rtol=1e-6)
  assert (broken['previous_loss'], broken['num_falls']) == (1, 0)
  assert fallen['num_falls'] == (2 if rule == 'fl4health' else 1)
  # 0.5 is compared with 1: one fall of three.
  np.testing.assert_allclose(after['mu'], 1.1, rtol=1e-6)
  assert (after['previous_loss'], after['num_falls']) == (0.5, 1)


@pytest.mark.parametrize('rule', adaptive_mu.RULES)
def test_step_and_patience(rule):
  # Two falls: 1 - 0.25; a rise: + 0.25.
  found = _mus([3, 2, 1, 4], 1, rule, mu_step=0.25, patience=2)
  at_fall = 1 if rule == 'fl4health' else 2
  assert found == [*[1] * at_fall, *[0.75] * (3 - at_fall), 1]


def test_mu_stays_above_zero():
  assert _mus([3, 2], 0.25, 'fl4health', mu_step=1.0, patience=1) == [0, 0]


def test_unknown_rule():
  with pytest.raises(
    ValueError, match="`rule` must be one of fl4health, .*, found 'adam'"
  ):
    _states([1], 1, 'adam')
