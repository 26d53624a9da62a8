"""Disk that the tensors kept by clients take."""

import itertools
import random
import statistics

import planned_configs
import pytest

from tff_fedfish.fields import ConfigError
from tff_fedfish.planning.disk import states_on_disk

_MOON = {'algorithm__name': 'moon'}
_SCAFFOLD = {'algorithm__name': 'scaffold'}
_FED_SGD = {
  'algorithm__name': 'fed_sgd',
  'client_work__num_local_epochs': 1,
  'client_work__momentum': 0.9,
}
_KEPT = {'client_work__keeps_optimizer_state': True}


@pytest.mark.parametrize(
  ('settings', 'slots'),
  [
    ({'algorithm__name': 'fed_avg'}, []),
    (_MOON, [('previous_model', 1)]),
    (_SCAFFOLD, [('control_variate', 1)]),
    (
      _MOON | _KEPT | {'client_work__optimizer': 'adamw'},
      [('previous_model', 1), ('optimizer', 2)],
    ),
    (
      {'algorithm__name': 'fed_avg', 'client_work__momentum': 0.9} | _KEPT,
      [('optimizer', 1)],
    ),
  ],
)
def test_tensors_that_clients_keep(settings, slots):
  config = planned_configs.by_hand(**settings)
  assert config.kept_models == dict(slots)


@pytest.mark.parametrize(
  ('settings', 'problem'),
  [
    (
      _KEPT,
      "keeps_optimizer_state` must be False with optimizer 'sgd' without "
      'momentum, which has no moments, found True',
    ),
    (_FED_SGD | _KEPT, 'keeps_optimizer_state` must be False'),
    (
      _SCAFFOLD | {'client_work__momentum': 0.9},
      "momentum` must be 0.0 with algorithm.name 'scaffold', found 0.9",
    ),
    (
      _SCAFFOLD | {'client_work__max_delta_norm': 2.0},
      "max_delta_norm` must be None with algorithm.name 'scaffold', found 2.0",
    ),
  ],
)
def test_refused(settings, problem):
  with pytest.raises(ConfigError) as caught:
    planned_configs.by_hand(**settings)
  assert f'`config.client_work.{problem}' in str(caught.value)


def _states(num_clients=None, **settings):
  shared = {'cohorts__cohort_size': 20, 'training__num_rounds': 2}
  config = planned_configs.by_hand(**_MOON | shared | settings)
  return states_on_disk(config, num_clients)


def test_states_by_hand():
  # A checkpoint every round. 100 (1 - 0.8^2) = 36 clients; 20 of round 1, of
  # which 20 * 0.2 = 4 come again; before that the 20 of round 2 are written.
  states = _states(100, checkpoints__every_num_rounds=1)
  assert states.client_bytes == 4 * 180
  assert states.num_clients == pytest.approx(36)
  assert states.peak_bytes == pytest.approx(60 * 720, abs=1)
  assert str(states) == 'up to 42.2 KiB, 36 clients of 720 B at the end'
  # All seven clients in both rounds: two states each, and those being written.
  states = _states(
    7, cohorts__cohort_size=None, checkpoints__every_num_rounds=1
  )
  assert states.peak_bytes == 21 * 720
  assert _states(algorithm__name='fed_avg') is None


def test_states_of_an_unknown_number_of_clients():
  states = _states(data__directory='/nowhere')
  assert (states.num_clients, states.peak_bytes) == (None, None)
  assert str(states) == '720 B for each client that has taken part'


@pytest.mark.parametrize(
  ('num_clients', 'cohort_size', 'num_rounds', 'every'),
  [(200, 8, 60, 25), (539, 8, 20, 7)],
)
def test_states_against_draws(num_clients, cohort_size, num_rounds, every):
  states = _states(
    num_clients,
    cohorts__cohort_size=cohort_size,
    training__num_rounds=num_rounds,
    checkpoints__every_num_rounds=every,
  )
  peak = statistics.mean(
    _drawn_peak(num_clients, cohort_size, num_rounds, every, seed)
    for seed in range(5)
  )
  assert states.peak_bytes / states.client_bytes == pytest.approx(peak, rel=0.1)


def _drawn_peak(num_clients, cohort_size, num_rounds, every, seed):
  """Returns the largest number of states, by the rule itself."""
  generator = random.Random(seed)
  versions, saved, peak = {}, [0], 0
  for round_num in range(1, num_rounds + 1):
    for client in generator.sample(range(num_clients), cohort_size):
      versions.setdefault(client, []).append(round_num)
    peak = max(peak, sum(map(len, versions.values())))
    for client, rounds in versions.items():
      versions[client] = [
        a
        for a, b in itertools.pairwise(rounds)
        if any(a <= kept < b for kept in saved[-2:])
      ] + rounds[-1:]
    if not round_num % every or round_num == num_rounds:
      saved.append(round_num)
  return peak
