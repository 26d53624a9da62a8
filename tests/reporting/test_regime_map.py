"""The map of who wins by client learning rate and local epochs."""

import csv
import io

import pytest

from tff_fedfish.reporting import loading, regime_map


def _runs(tmp_path, write_sweep, gains, **settings):
  """Loads runs of each client rate: rate -> (algorithm, E) -> gain."""
  paths = []
  for rate, found in gains.items():
    paths += write_sweep(
      tmp_path / f'{rate}',
      {(name, epochs, 4): gain for (name, epochs), gain in found.items()},
      settings={'client_work.learning_rate': rate, **settings},
    )
  return loading.load_runs(paths)


# FedFish is ahead at the small rate, and at the large one behind by more with
# more local epochs.
_GAINS = {
  0.001: {
    ('fed_avg', 1): 1.0,
    ('fed_fish', 1): 1.25,
    ('fed_avg', 4): 1.0,
    ('fed_fish', 4): 1.5,
  },
  0.01: {
    ('fed_avg', 1): 2.0,
    ('fed_fish', 1): 1.75,
    ('fed_avg', 4): 2.0,
    ('fed_fish', 4): 1.0,
  },
}


def test_differences_by_hand(tmp_path, write_sweep, drawn):
  runs = _runs(tmp_path, write_sweep, _GAINS)
  [figure] = regime_map.regime_maps(runs)
  small, large = drawn['regime_map'].axes
  assert small.get_title() == 'Client learning rate 0.001'
  assert [t.get_text() for t in large.get_xticklabels()] == ['1', '4']
  # Loss is 8 - gain, the same seeds on both sides.
  rows = list(csv.DictReader(io.StringIO(figure.csv)))
  found = {(row['series'], row['x']): float(row['y']) for row in rows}
  assert found == {
    ('FedFish, rate 0.001', '1'): pytest.approx(-0.25),
    ('FedFish, rate 0.001', '4'): pytest.approx(-0.5),
    ('FedFish, rate 0.01', '1'): pytest.approx(0.25),
    ('FedFish, rate 0.01', '4'): pytest.approx(1.0),
  }
  assert 'FedFish at rate 0.01 and E = 4: +1.000' in figure.alternative_text


def test_servers_rates_make_no_other_method(tmp_path, write_sweep, drawn):
  paths = {
    rate: {key: gain for key, gain in found.items() if key[1] == 1}
    for rate, found in _GAINS.items()
  }
  runs = _runs(tmp_path / 'a', write_sweep, paths)
  changed = {
    rate: {
      ('fed_avg', 4): found['fed_avg', 4],
      ('fed_fish', 4): found['fed_fish', 4],
    }
    for rate, found in _GAINS.items()
  }
  runs += _runs(
    tmp_path / 'b', write_sweep, changed, **{'server.learning_rate': 0.5}
  )
  [figure] = regime_map.regime_maps(runs)
  rows = list(csv.DictReader(io.StringIO(figure.csv)))
  assert {row['series'] for row in rows} == {
    'FedFish, rate 0.001',
    'FedFish, rate 0.01',
  }


def test_several_servers_rates_of_a_method_have_no_map(
  tmp_path, write_sweep, drawn
):
  # FedFish gains 1.5 at the server's rate 0.001 and loses 3 at 0.5: which of
  # the two counts, the order of the directories must not decide.
  runs = _runs(tmp_path / 'a', write_sweep, _GAINS)
  worse = {rate: {('fed_fish', 4): -3.0} for rate in _GAINS}
  runs += _runs(
    tmp_path / 'b', write_sweep, worse, **{'server.learning_rate': 0.5}
  )
  assert regime_map.regime_maps(runs) == []
  [note] = regime_map.notes(runs)
  assert 'FedFish has 0.001, 0.5 at client rate 0.001 and E = 4;' in note
  assert regime_map.notes(_runs(tmp_path / 'c', write_sweep, _GAINS)) == []


def test_several_variants_of_the_baseline_have_no_map(
  tmp_path, write_sweep, drawn
):
  runs = _runs(tmp_path / 'a', write_sweep, _GAINS)
  other = {rate: {('fed_avg', 4): 9.0} for rate in _GAINS}
  runs += _runs(
    tmp_path / 'b',
    write_sweep,
    other,
    **{'algorithm.client_weighting': 'uniform'},
  )
  assert regime_map.regime_maps(runs) == []
  [note] = regime_map.notes(runs)
  assert (
    "FedAvg (client_weighting 'num_examples') and FedAvg (client_weighting "
    "'uniform') at client rate 0.001 and E = 4;"
  ) in note


def test_one_client_rate_has_no_map(tmp_path, write_sweep, drawn):
  runs = _runs(tmp_path, write_sweep, {0.01: _GAINS[0.01]})
  assert regime_map.regime_maps(runs) == []


def test_without_the_baseline_there_is_nothing_to_compare(
  tmp_path, write_sweep, drawn
):
  gains = {
    rate: {key: gain for key, gain in found.items() if key[0] == 'fed_fish'}
    for rate, found in _GAINS.items()
  }
  runs = _runs(tmp_path, write_sweep, gains)
  assert regime_map.regime_maps(runs) == []
