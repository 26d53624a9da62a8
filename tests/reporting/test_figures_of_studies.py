"""Tables of plots that compare several settings, rates and seeds."""

import pytest
from report_plots import plots_of, points
from report_runs import write_evaluation, write_run, write_sweep


def test_differences_of_several_methods_and_settings(tmp_path):
  gains = {
    (name, epochs, 2): gain * epochs
    for name, gain in (('fed_avg', 1.0), ('fed_fish', 1.25), ('fed_prox', 0.5))
    for epochs in (1, 2)
  }
  plot = plots_of(write_sweep(tmp_path, gains, num_seeds=1))['differences']
  assert plot.title == 'Loss of methods minus loss of FedAvg'
  # Losses are 8 - gain - seed / 10, and none is of FedFish and FedProx.
  assert points(plot, 'x', 'series', 'y') == [
    ('E = 1', 'FedFish', -0.25),
    ('E = 1', 'FedProx', 0.5),
    ('E = 2', 'FedFish', -0.5),
    ('E = 2', 'FedProx', 1.0),
  ]


def test_differences_without_the_baseline(tmp_path):
  gains = {('fed_prox', 1, 2): 1.0, ('fed_fish', 1, 2): 1.25}
  gains['scaffold', 1, 2] = 1.5
  plot = plots_of(write_sweep(tmp_path, gains, num_seeds=2))['differences']
  where = {'series': 'without personalization'}
  assert points(plot, 'x', 'y', **where) == [
    ('FedFish − FedProx', -0.25),
    ('SCAFFOLD − FedProx', -0.5),
    ('SCAFFOLD − FedFish', -0.25),
  ]
  # Two seeds have no interval.
  assert 'Whiskers' not in plot.caption


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


def _write_rates(root, gains, **settings):
  """Writes runs of each client rate: rate -> (algorithm, E) -> gain."""
  paths = []
  for rate, found in gains.items():
    paths += write_sweep(
      root / f'{rate}',
      {(name, epochs, 4): gain for (name, epochs), gain in found.items()},
      num_seeds=1,
      settings={'client_work.learning_rate': rate, **settings},
    )
  return paths


@pytest.fixture(name='of_rates', scope='module')
def _of_rates(tmp_path_factory):
  """FedAvg and FedFish at two client rates, with 1 and 4 local epochs."""
  return plots_of(_write_rates(tmp_path_factory.mktemp('rates'), _GAINS))


def test_differences_are_of_equal_client_rates(of_rates):
  plot = of_rates['differences']
  assert plot.title == 'Loss of methods minus loss of FedAvg'
  series = [f'FedFish (client learning rate {rate})' for rate in _GAINS]
  assert points(plot, 'x', 'series', 'y') == [
    ('E = 1', series[0], -0.25),
    ('E = 1', series[1], 0.25),
    ('E = 4', series[0], -0.5),
    ('E = 4', series[1], 1.0),
  ]
  faces = [plot.looks[name].shade for name in series]
  assert faces[0] != faces[1]


def test_where_methods_win(of_rates, of_sweep):
  plot = of_rates['who_wins']
  # Loss is 8 - gain, the same seeds on both sides.
  assert points(plot, 'panel', 'series', 'x', 'y') == [
    ('Client rate 0.001', 'FedFish', 1, -0.25),
    ('Client rate 0.001', 'FedFish', 4, -0.5),
    ('Client rate 0.01', 'FedFish', 1, 0.25),
    ('Client rate 0.01', 'FedFish', 4, 1.0),
  ]
  # Of one client rate there is no map.
  assert 'who_wins' not in of_sweep


def test_several_differences_in_one_place_have_no_map(tmp_path):
  # FedFish gains 1.5 at the server's rate 0.001 and loses 3 at 0.5: which of
  # the two counts, the order of the directories must not decide.
  paths = _write_rates(tmp_path / 'a', _GAINS)
  worse = {rate: {('fed_fish', 4): -3.0} for rate in _GAINS}
  paths += _write_rates(tmp_path / 'b', worse, **{'server.learning_rate': 0.5})
  assert 'who_wins' not in plots_of(paths)


@pytest.fixture(name='of_sweep', scope='module')
def _of_sweep(tmp_path_factory):
  """E = 1 and 4 for 4 rounds, and E = 4 for 1: 4 local epochs, as E = 1."""
  gains = {
    (algorithm, epochs, rounds): epochs * rounds / 8 + (algorithm == 'fed_fish')
    for algorithm in ('fed_avg', 'fed_fish')
    for epochs, rounds in ((1, 4), (4, 4), (4, 1))
  }
  root = tmp_path_factory.mktemp('sweep')
  return plots_of(write_sweep(root, gains, num_seeds=2))


def test_curves_over_seeds_have_a_band(of_sweep):
  plot = of_sweep['curves']
  where = {'panel': 'Held-out loss (nats per token)', 'x': 3}
  where['series'] = 'FedAvg, E = 1'
  # 8 - 0.5 and 8 - 0.5 - 0.1.
  found = points(plot, 'y', 'low', 'high', **where)
  assert found == [(7.45, 7.4, 7.5)]
  assert 'shaded from the lowest to the highest seed' in plot.caption


def test_accuracy_by_local_epochs_where_these_differ(of_sweep):
  plot = of_sweep['cost']
  where = {
    'panel': 'Local epochs (cumulative)',
    'series': 'FedAvg, E = 4, rounds = 4',
  }
  assert points(plot, 'x', 'y', **where)[:3] == [(0, 0), (4, 1), (8, 2)]


def test_final_scores_by_local_epochs_and_budget(of_sweep):
  plot = of_sweep['local_epochs_loss']
  where = {'panel': 'Without personalization'}
  # Losses 8 - gain - 0.05 over two seeds: 7.45 with 4 local epochs in all,
  # 5.95 with 16.
  found = {
    series: points(plot, 'x', 'y', series=series, **where)
    for series in dict.fromkeys(plot.table['series'])
    if series.startswith('FedAvg')
  }
  assert found == {
    'FedAvg, 4 rounds': [(1, 7.45), (4, 5.95)],
    'FedAvg, 4 local epochs in all': [(1, 7.45), (4, 7.45)],
  }
  # Seeds 7.5 and 7.4: each is drawn alone in a quarter of the resamples.
  series = 'FedAvg, 4 local epochs in all'
  [first, _] = points(plot, 'low', 'high', series=series, **where)
  assert first == (7.4, 7.5)
  where = {'panel': 'Personalized on 50 %', 'series': series}
  assert points(plot, 'y', **where) == [(6.45,)] * 2
  assert 'local_epochs_accuracy' in of_sweep


def test_runs_in_progress_have_no_final_score(tmp_path):
  directories = []
  for epochs in (1, 4):
    run = write_run(
      tmp_path / str(epochs), num_local_epochs=epochs, num_rounds=9
    )
    write_evaluation(run, 'e', round_num=2)
    directories.append(run)
  assert 'local_epochs_loss' not in plots_of(directories)
