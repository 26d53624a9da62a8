"""Tensors that clients keep: which, and the disk that they take."""

import itertools
import random
import statistics

import planned_configs
import pytest

from tff_fedfish.fields import ConfigError
from tff_fedfish.methods import Slot
from tff_fedfish.planning.client_states import states_on_disk


@pytest.mark.parametrize(
  ('settings', 'slots'),
  [
    ({'algorithm__name': 'fed_avg'}, []),
    ({'algorithm__name': 'moon'}, [('previous_model', 1)]),
    ({'algorithm__name': 'scaffold'}, [('control_variate', 1)]),
    (
      {
        'algorithm__name': 'moon',
        'client_work__optimizer': 'adamw',
        'client_work__keeps_optimizer_state': True,
      },
      [('previous_model', 1), ('optimizer', 2)],
    ),
    (
      {
        'algorithm__name': 'fed_avg',
        'client_work__momentum': 0.9,
        'client_work__keeps_optimizer_state': True,
      },
      [('optimizer', 1)],
    ),
  ],
)
def test_slots(settings, slots):
  config = planned_configs.by_hand(**settings)
  assert list(config.kept_slots) == [Slot(*slot) for slot in slots]


_MOON = {'algorithm__name': 'moon'}
_SCAFFOLD = {'algorithm__name': 'scaffold'}
_FED_SGD = {
  'algorithm__name': 'fed_sgd',
  'client_work__num_local_epochs': 1,
  'client_work__momentum': 0.9,
}
_KEPT = {'client_work__keeps_optimizer_state': True}


@pytest.mark.parametrize(
  ('settings', 'problem'),
  [
    (
      _KEPT,
      "keeps_optimizer_state` must be false with optimizer 'sgd' without "
      'momentum, which has no moments, found true',
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


class TestStatesOnDisk:
  """Sizes for a model of N weights, 4 bytes each."""

  def _states(self, num_clients=None, **settings):
    settings = (
      _MOON
      | {
        'cohorts__cohort_size': 20,
        'training__num_rounds': 2,
      }
      | settings
    )
    config = planned_configs.by_hand(**settings)
    return states_on_disk(config, num_clients)

  def test_methods_that_keep_nothing(self):
    assert self._states(algorithm__name='fed_avg') is None

  def test_by_hand(self):
    # A checkpoint every round. 100 (1 - 0.8^2) = 36 clients; 20 of round 1, of
    # which 20 * 0.2 = 4 come again; before that the 20 of round 2 are written.
    found = self._states(100, checkpoints__every_num_rounds=1)
    size = found.client_bytes
    assert size == 4 * 180
    assert found.num_clients == pytest.approx(36)
    assert found.end_bytes == pytest.approx(40 * size, abs=1)
    assert found.peak_bytes == pytest.approx(60 * size, abs=1)
    assert str(found) == (
      'about 28.1 KiB at the end, 42.2 KiB at most on the way; 36 clients of '
      '720 B'
    )

  def test_an_unknown_number_of_clients(self):
    found = self._states(data__directory='/nowhere')
    assert (found.num_clients, found.end_bytes) == (None, None)
    assert str(found) == '720 B for each client that has taken part'

  def test_all_clients_in_every_round(self):
    found = self._states(
      7, cohorts__cohort_size=None, checkpoints__every_num_rounds=1
    )
    assert found.num_clients == 7
    # As after round 1 and as after round 2.
    assert found.end_bytes == 14 * found.client_bytes

  @pytest.mark.parametrize(
    ('num_clients', 'cohort_size', 'num_rounds', 'every'),
    [(200, 8, 60, 25), (539, 8, 20, 7)],
  )
  def test_against_draws(self, num_clients, cohort_size, num_rounds, every):
    found = self._states(
      num_clients,
      cohorts__cohort_size=cohort_size,
      training__num_rounds=num_rounds,
      checkpoints__every_num_rounds=every,
    )
    ends, peaks = zip(
      *(
        _drawn(num_clients, cohort_size, num_rounds, every, seed)
        for seed in range(5)
      ),
      strict=True,
    )
    end, peak = (statistics.mean(sizes) for sizes in (ends, peaks))
    assert found.end_bytes / found.client_bytes == pytest.approx(end, rel=0.07)
    assert found.peak_bytes / found.client_bytes == pytest.approx(peak, rel=0.1)


def _drawn(num_clients, cohort_size, num_rounds, every, seed):
  """Returns the states at the end and at the peak, by the rule itself."""
  generator = random.Random(seed)
  versions, saved, peak = {}, [0], 0

  def collect():
    for client, rounds in versions.items():
      versions[client] = rounds[-1:]
      versions[client][:0] = [
        a
        for a, b in itertools.pairwise(rounds)
        if any(a <= kept < b for kept in saved[-2:])
      ]
    return sum(map(len, versions.values()))

  for round_num in range(1, num_rounds + 1):
    for client in generator.sample(range(num_clients), cohort_size):
      versions.setdefault(client, []).append(round_num)
    peak = max(peak, sum(map(len, versions.values())))
    collect()
    if not round_num % every or round_num == num_rounds:
      saved.append(round_num)
  return collect(), peak
