"""The tables that plots are drawn from; nothing is drawn here."""

import pytest

from tff_fedfish.reporting import loading, scores
from tff_fedfish.reporting.figures_of_report import all_plots


def _plots(directories):
  """Returns name -> plot of the runs."""
  sections = all_plots(scores.read_scores(loading.load_runs(directories)))
  plots = {plot.name: plot for found in sections.values() for plot in found}
  for plot in plots.values():
    if plot.kind in ('bar', 'point', 'line'):
      # Nothing is drawn over something else.
      assert not plot.table.duplicated(['panel', 'series', 'x']).any()
  return plots


def _points(plot, *columns, **where):
  """Returns tuples of some columns of the rows that match."""
  table = plot.table
  for name, value in where.items():
    table = table[table[name] == value]
  return list(table[list(columns)].itertuples(index=False, name=None))


@pytest.fixture(name='of_pair', scope='module')
def _of_pair(pair):
  """Plots of FedAvg and FedFish, E = 8."""
  return _plots(pair)


@pytest.fixture(name='of_sweep', scope='module')
def _of_sweep(tmp_path_factory, write_sweep):
  """E = 1 and 4 for 4 rounds, and E = 4 for 1: 4 local epochs, as E = 1."""
  gains = {
    (algorithm, epochs, rounds): epochs * rounds / 8 + (algorithm == 'fed_fish')
    for algorithm in ('fed_avg', 'fed_fish')
    for epochs, rounds in ((1, 4), (4, 4), (4, 1))
  }
  root = tmp_path_factory.mktemp('sweep')
  return _plots(write_sweep(root, gains, num_seeds=2))


def test_a_pair_has_all_that_a_pair_can_have(of_pair):
  assert list(of_pair) == [
    'differences',
    'held_out_scores',
    'held_out_before_after',
    'transfer_1_scores',
    'transfer_1_before_after',
    'curves',
    'cost',
    'barrier',
  ]


def test_differences_of_one_method(of_pair):
  plot = of_pair['differences']
  assert plot.title == 'Loss of FedFish minus loss of FedAvg'
  # (5.5 - 6 + 6.5 - 7 + 5 - 5 + 6 - 6) / 4 and
  # (5 - 5 + 6 - 6.5 + 4.5 - 5.5 + 4.5 - 4) / 4.
  assert _points(plot, 'series', 'x', 'y') == [
    ('without personalization', '', -0.25),
    ('personalized on 50 %', '', -0.25),
  ]


def test_differences_of_several_methods_and_settings(tmp_path, write_sweep):
  gains = {
    (name, epochs, 2): gain * epochs
    for name, gain in (('fed_avg', 1.0), ('fed_fish', 1.25), ('fed_prox', 0.5))
    for epochs in (1, 2)
  }
  plot = _plots(write_sweep(tmp_path, gains))['differences']
  assert plot.title == 'Loss of methods minus loss of FedAvg'
  # Losses are 8 - gain - seed / 10, and none is of FedFish and FedProx.
  assert _points(plot, 'x', 'series', 'y') == [
    ('E = 1', 'FedFish', pytest.approx(-0.25)),
    ('E = 1', 'FedProx', pytest.approx(0.5)),
    ('E = 2', 'FedFish', pytest.approx(-0.5)),
    ('E = 2', 'FedProx', pytest.approx(1.0)),
  ]


def test_differences_without_the_baseline(tmp_path, write_sweep):
  gains = {('fed_prox', 1, 2): 1.0, ('fed_fish', 1, 2): 1.25}
  gains['scaffold', 1, 2] = 1.5
  plot = _plots(write_sweep(tmp_path, gains, num_seeds=2))['differences']
  where = {'series': 'without personalization'}
  assert _points(plot, 'x', 'y', **where) == [
    ('FedFish − FedProx', pytest.approx(-0.25)),
    ('SCAFFOLD − FedProx', pytest.approx(-0.5)),
    ('SCAFFOLD − FedFish', pytest.approx(-0.25)),
  ]
  # Two seeds have no interval.
  assert 'Whiskers' not in plot.caption


def test_differences_are_of_equal_client_rates(tmp_path, write_sweep):
  plot = _plots(_write_rates(tmp_path, write_sweep, _GAINS))['differences']
  assert plot.title == 'Loss of methods minus loss of FedAvg'
  series = [f'FedFish (client learning rate {rate})' for rate in _GAINS]
  assert _points(plot, 'x', 'series', 'y') == [
    ('E = 1', series[0], pytest.approx(-0.25)),
    ('E = 1', series[1], pytest.approx(0.25)),
    ('E = 4', series[0], pytest.approx(-0.5)),
    ('E = 4', series[1], pytest.approx(1.0)),
  ]
  faces = [plot.looks[name].shade for name in series]
  assert faces[0] != faces[1]


def test_scores_by_fraction_with_their_intervals(of_pair):
  plot = of_pair['held_out_scores']
  where = {'series': 'FedAvg, E = 8', 'panel': 'Loss (nats per token)'}
  # (6 + 7 + 5 + 6) / 4 and (5 + 6.5 + 5.5 + 4) / 4, -/+ 0.25.
  assert _points(plot, 'x', 'y', 'low', 'high', **where) == [
    (0, 6.0, 5.75, 6.25),
    (50, 5.25, 5.0, 5.5),
  ]
  where['panel'] = 'Token accuracy (%)'
  found = _points(plot, 'y', **where)
  # Accuracies are (10 - loss) %.
  assert found == [(pytest.approx(4.0),), (pytest.approx(4.75),)]
  assert 'Token accuracy (%): FedAvg, E = 8: 4.0 at 0, 4.8 at 50' in plot.words


def test_clients_before_and_after(of_pair):
  plot = of_pair['held_out_before_after']
  assert _points(plot, 'point', 'x', 'y', panel='FedAvg, E = 8') == [
    ('a.org', 6, 5),
    ('b.org', 7, 6.5),
    ('c.org', 5, 5.5),
    ('d.org', 6, 4),
  ]
  assert 'FedAvg, E = 8: 3 of 4 points below the diagonal' in plot.words


def test_names_of_clients_are_no_formulas(
  tmp_path, write_run, write_evaluation
):
  run = write_run(tmp_path / '=run')
  write_evaluation(run, 'e', client_ids=('=1+1', '@a', '-b', 'c'))
  plots = _plots([run, write_run(tmp_path / 'other')])
  points = set(plots['held_out_before_after'].table['point'])
  assert points == {'%3D1+1', '%40a', '%2Db', 'c'}


def test_curves_by_round(of_pair):
  plot = of_pair['curves']
  where = {'series': 'FedAvg, E = 8'}
  # Held-out losses as written; train losses are 9 - r, from round 1 on.
  loss, accuracy, train = plot.panel_names
  assert loss == 'Held-out loss (nats per token)'
  assert _points(plot, 'x', 'y', panel=loss, **where) == [
    (0, 8.0),
    (1, 7.0),
    (2, 6.5),
  ]
  # r / 100 in round r.
  assert _points(plot, 'y', panel=accuracy, **where) == [(0,), (1,), (2,)]
  assert _points(plot, 'x', 'y', panel=train, **where) == [(1, 8.0), (2, 7.0)]


def test_curves_over_seeds_have_a_band(of_sweep):
  plot = of_sweep['curves']
  where = {'panel': 'Held-out loss (nats per token)', 'x': 3}
  where['series'] = 'FedAvg, E = 1'
  # 8 - 0.5 and 8 - 0.5 - 0.1.
  found = _points(plot, 'y', 'low', 'high', **where)
  assert found == [pytest.approx((7.45, 7.4, 7.5))]
  assert 'shaded from the lowest to the highest seed' in plot.caption


def test_curves_leave_out_rounds_without_a_finite_value(tmp_path, write_run):
  losses = (8.0, None, 7.0, float('nan'))
  run = write_run(tmp_path / 'run', held_out_losses=losses)
  plot = _plots([run])['curves']
  where = {'panel': 'Held-out loss (nats per token)'}
  assert _points(plot, 'x', 'y', **where) == [(0, 8.0), (2, 7.0)]


def test_personalized_accuracy_of_checkpoints(
  tmp_path, write_run, write_evaluation
):
  run = write_run(tmp_path / 'run', held_out_losses=(8.0,) * 5)
  for round_num, loss in ((2, 6.0), (4, 5.0)):
    losses = {0.0: (9.0,) * 4, 0.25: (8.0,) * 4, 0.5: (loss,) * 4}
    write_evaluation(run, f'e{round_num}', round_num=round_num, losses=losses)
  plot = _plots([run])['curves']
  where = {'panel': 'Personalized token accuracy (%)'}
  # (10 - 6) % and (10 - 5) % after half of the data.
  assert _points(plot, 'x', 'y', **where) == [
    (2, pytest.approx(4.0)),
    (4, pytest.approx(5.0)),
  ]


def test_accuracy_by_traffic(of_pair):
  plot = of_pair['cost']
  uplink, total = plot.panel_names
  where = {'series': 'FedFish, E = 8'}
  # FedFish sends 2 units up in each of 2 rounds, and receives 1.
  points = [(0, 0), (2, 1), (4, 2)]
  assert _points(plot, 'x', 'y', panel=uplink, **where) == points
  points = [(0, 0), (3, 1), (6, 2)]
  assert _points(plot, 'x', 'y', panel=total, **where) == points


def test_accuracy_by_local_epochs_where_these_differ(of_sweep):
  plot = of_sweep['cost']
  where = {
    'panel': 'Local epochs (cumulative)',
    'series': 'FedAvg, E = 4, rounds = 4',
  }
  assert _points(plot, 'x', 'y', **where)[:3] == [(0, 0), (4, 1), (8, 2)]


def test_barriers_measured_in_training(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  lines = (directory / 'metrics.csv').read_text().splitlines()
  cells = ('barrier/loss', '', '0.5', '0.25')
  (directory / 'metrics.csv').write_text(
    ''.join(f'{a},{b}\n' for a, b in zip(lines, cells, strict=True))
  )
  plot = _plots([directory])['curves']
  points = _points(plot, 'x', 'y', panel='Barrier (nats per token)')
  assert points == [(1, 0.5), (2, 0.25)]


def test_images_are_no_tokens(tmp_path, write_run):
  settings = {'data.corpus': 'mnist_by_writer', 'data.sequence_length': None}
  plot = _plots([write_run(tmp_path / 'run', settings=settings)])['curves']
  assert plot.panel_names[:2] == [
    'Held-out loss (nats per image)',
    'Held-out accuracy (%)',
  ]


def test_no_plot_without_values(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n0\n')
  assert _plots([directory]) == {}


def test_final_scores_by_local_epochs_and_budget(of_sweep):
  plot = of_sweep['local_epochs_loss']
  where = {'panel': 'Without personalization'}
  # Losses 8 - gain - 0.05 over two seeds: 7.45 with 4 local epochs in all,
  # 5.95 with 16.
  found = {
    series: _points(plot, 'x', 'y', series=series, **where)
    for series in dict.fromkeys(plot.table['series'])
    if series.startswith('FedAvg')
  }
  assert found == {
    'FedAvg, 4 rounds': [
      (1, pytest.approx(7.45)),
      (4, pytest.approx(5.95)),
    ],
    'FedAvg, 4 local epochs in all': [
      (1, pytest.approx(7.45)),
      (4, pytest.approx(7.45)),
    ],
  }
  # Seeds 7.5 and 7.4: each is drawn alone in a quarter of the resamples.
  series = 'FedAvg, 4 local epochs in all'
  [first, _] = _points(plot, 'low', 'high', series=series, **where)
  assert first == pytest.approx((7.4, 7.5))
  where = {'panel': 'Personalized on 50 %', 'series': series}
  assert _points(plot, 'y', **where) == [(pytest.approx(6.45),)] * 2
  assert 'local_epochs_accuracy' in of_sweep


def test_one_number_of_local_epochs_has_no_trend(of_pair):
  assert not any('local_epochs' in name for name in of_pair)


def test_runs_in_progress_have_no_final_score(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for epochs in (1, 4):
    run = write_run(
      tmp_path / str(epochs), num_local_epochs=epochs, num_rounds=9
    )
    write_evaluation(run, 'e', round_num=2)
    directories.append(run)
  assert 'local_epochs_loss' not in _plots(directories)


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


def _write_rates(root, write_sweep, gains, **settings):
  """Writes runs of each client rate: rate -> (algorithm, E) -> gain."""
  paths = []
  for rate, found in gains.items():
    paths += write_sweep(
      root / f'{rate}',
      {(name, epochs, 4): gain for (name, epochs), gain in found.items()},
      settings={'client_work.learning_rate': rate, **settings},
    )
  return paths


def test_where_methods_win(tmp_path, write_sweep):
  plot = _plots(_write_rates(tmp_path, write_sweep, _GAINS))['who_wins']
  # Loss is 8 - gain, the same seeds on both sides.
  assert _points(plot, 'panel', 'series', 'x', 'y') == [
    ('Client rate 0.001', 'FedFish', 1, pytest.approx(-0.25)),
    ('Client rate 0.001', 'FedFish', 4, pytest.approx(-0.5)),
    ('Client rate 0.01', 'FedFish', 1, pytest.approx(0.25)),
    ('Client rate 0.01', 'FedFish', 4, pytest.approx(1.0)),
  ]


def test_several_differences_in_one_place_have_no_map(tmp_path, write_sweep):
  # FedFish gains 1.5 at the server's rate 0.001 and loses 3 at 0.5: which of
  # the two counts, the order of the directories must not decide.
  paths = _write_rates(tmp_path / 'a', write_sweep, _GAINS)
  worse = {rate: {('fed_fish', 4): -3.0} for rate in _GAINS}
  paths += _write_rates(
    tmp_path / 'b', write_sweep, worse, **{'server.learning_rate': 0.5}
  )
  assert 'who_wins' not in _plots(paths)


def test_one_client_rate_has_no_map(of_sweep):
  assert 'who_wins' not in of_sweep


def test_barriers_of_a_pair(of_pair):
  plot = of_pair['barrier']
  # FedFish 5.2 - 5 and 4.3 - 4; FedAvg 5.5 - 5 and 4.2 - 4.
  assert _points(plot, 'point', 'x', 'y') == [
    ('client0', pytest.approx(0.2), pytest.approx(0.5)),
    ('client1', pytest.approx(0.3), pytest.approx(0.2)),
  ]
  # An evaluation of round r replays round r + 1.
  assert set(plot.table['series']) == {'round 3'}


def test_barriers_are_paired_by_seeds_and_rounds(
  tmp_path, write_run, write_evaluation
):
  """Barriers of round r: FedFish r / 10, FedAvg (r + seed) / 10."""
  directories = []
  for algorithm, rounds in (('fed_avg', (1, 2)), ('fed_fish', (2, 4))):
    for seed in (1, 2):
      run = write_run(
        tmp_path / f'{algorithm}_{seed}',
        algorithm=algorithm,
        settings={'seeds.cohort_seed': seed},
      )
      for r in rounds:
        barrier = (r + (seed if algorithm == 'fed_avg' else 0)) / 10
        row = (4.0, 4.0 + barrier, 0.2, 0.1)
        write_evaluation(run, f'e{r}', round_num=r, barriers=(row,))
      directories.append(run)
  plot = _plots(directories)['barrier']
  assert _points(plot, 'series', 'x', 'y') == [
    ('round 3', pytest.approx(0.2), pytest.approx(0.3)),
    ('round 3', pytest.approx(0.2), pytest.approx(0.4)),
  ]


def test_each_method_has_its_barriers_against_the_baseline(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for name in ('fed_avg', 'fed_fish', 'fed_prox'):
    directories.append(write_run(tmp_path / name, algorithm=name))
    row = (4.0, 4.0 + len(directories) / 4, 0.2, 0.1)
    write_evaluation(directories[-1], 'e', barriers=(row,))
  plots = _plots(directories)
  titles = [plots[name].title for name in ('barrier_1', 'barrier_2')]
  assert titles == [
    'Client-Server Barrier, FedFish and FedAvg',
    'Client-Server Barrier, FedProx and FedAvg',
  ]
  assert _points(plots['barrier_2'], 'x', 'y') == [(0.75, 0.25)]


_IDS = ('a.org', 'b.org', 'c.org')


def _write_affinities(run, write_evaluation, values, clusters=(1, 0, 1)):
  """Adds an evaluation on own test rows with values[client][candidate]."""
  evaluation = write_evaluation(
    run,
    'own',
    kind='own_test',
    client_ids=_IDS,
    losses={0.0: (3.0, 4.0, 5.0)},
  )
  lines = ['client_id,cluster,candidate_id,affinity']
  for client, cluster, row in zip(_IDS, clusters, values, strict=True):
    for candidate, value in zip(_IDS, row, strict=True):
      lines.append(f'{client},{cluster},{candidate},{value}')
  (evaluation / 'affinity.csv').write_text('\n'.join(lines) + '\n')


_AFFINITY = ((5.0, -1.0, 2.0), (-3.0, 4.0, 0.0), (1.0, -2.0, 6.0))


def test_affinities_by_cluster(tmp_path, write_run, write_evaluation):
  directories = []
  for seed, factor in ((1, 1), (2, 3)):
    run = write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    values = [[factor * x for x in row] for row in _AFFINITY]
    _write_affinities(run, write_evaluation, values)
    directories.append(run)
  plots = _plots(directories)
  plot = plots['affinity_1']
  # Cluster 0 is b. Means over seeds are twice those of the first.
  assert _points(plot, 'series', 'x', 'y')[:4] == [
    ('0: b.org', '1: a.org', -6.0),
    ('0: b.org', '0: b.org', 8.0),
    ('0: b.org', '1: c.org', 0.0),
    ('1: a.org', '1: a.org', 10.0),
  ]
  # a and c: 2 (2 + 1) / 2 within; 2 (-1 - 3 + 0 - 2) / 4 across.
  words = 'Mean affinity: within clusters +3.000, across clusters −3.000.'
  assert words in plot.caption
  assert plots['own_test_scores'].panel_names == [
    'Loss (nats per token)',
    'Token accuracy (%)',
  ]


def test_affinities_without_clusters(tmp_path, write_run, write_evaluation):
  run = write_run(tmp_path / 'run')
  _write_affinities(run, write_evaluation, _AFFINITY, (-1, -1, -1))
  plot = _plots([run])['affinity_1']
  assert plot.table['series'].iloc[0] == 'a.org'
  # (-1 + 2 - 3 + 0 + 1 - 2) / 6.
  assert 'Mean affinity: between clients −0.500.' in plot.caption
