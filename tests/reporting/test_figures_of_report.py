"""The tables that plots are drawn from; nothing is drawn here."""

import math

import pytest
from report_plots import plots_of, points
from report_runs import write_evaluation, write_run


@pytest.fixture(name='of_pair', scope='module')
def _of_pair(pair):
  """Plots of FedAvg and FedFish, E = 8."""
  return plots_of(pair)


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
  assert points(plot, 'series', 'x', 'y') == [
    ('without personalization', '', -0.25),
    ('personalized on 50 %', '', -0.25),
  ]


def test_scores_by_fraction_with_their_intervals(of_pair):
  plot = of_pair['held_out_scores']
  where = {'series': 'FedAvg, E = 8', 'panel': 'Loss (nats per token)'}
  # (6 + 7 + 5 + 6) / 4 and (5 + 6.5 + 5.5 + 4) / 4, -/+ 0.25.
  assert points(plot, 'x', 'y', 'low', 'high', **where) == [
    (0, 6.0, 5.75, 6.25),
    (50, 5.25, 5.0, 5.5),
  ]
  where['panel'] = 'Token accuracy (%)'
  # Accuracies are (10 - loss) %.
  assert points(plot, 'y', **where) == [(4.0,), (4.75,)]
  assert 'Token accuracy (%): FedAvg, E = 8: 4.0 at 0, 4.8 at 50' in plot.words


def test_clients_before_and_after(of_pair):
  plot = of_pair['held_out_before_after']
  assert points(plot, 'point', 'x', 'y', panel='FedAvg, E = 8') == [
    ('a.org', 6, 5),
    ('b.org', 7, 6.5),
    ('c.org', 5, 5.5),
    ('d.org', 6, 4),
  ]
  assert 'FedAvg, E = 8: 3 of 4 points below the diagonal' in plot.words


def test_curves_by_round(of_pair):
  plot = of_pair['curves']
  where = {'series': 'FedAvg, E = 8'}
  # Held-out losses as written; train losses are 9 - r, from round 1 on.
  loss, accuracy, train = plot.panel_names
  assert loss == 'Held-out loss (nats per token)'
  assert points(plot, 'x', 'y', panel=loss, **where) == [
    (0, 8.0),
    (1, 7.0),
    (2, 6.5),
  ]
  # r / 100 in round r.
  assert points(plot, 'y', panel=accuracy, **where) == [(0,), (1,), (2,)]
  assert points(plot, 'x', 'y', panel=train, **where) == [(1, 8.0), (2, 7.0)]


def test_curves_leave_out_rounds_without_a_finite_value(tmp_path):
  losses = (8.0, None, 7.0, float('nan'))
  run = write_run(tmp_path / 'run', held_out_losses=losses)
  plot = plots_of([run])['curves']
  where = {'panel': 'Held-out loss (nats per token)'}
  assert points(plot, 'x', 'y', **where) == [(0, 8.0), (2, 7.0)]


def test_personalized_accuracy_of_checkpoints(tmp_path):
  run = write_run(tmp_path / 'run', held_out_losses=(8.0,) * 5)
  for round_num, loss in ((2, 6.0), (4, 5.0)):
    losses = {0.0: (9.0,) * 4, 0.25: (8.0,) * 4, 0.5: (loss,) * 4}
    write_evaluation(run, f'e{round_num}', round_num=round_num, losses=losses)
  plot = plots_of([run])['curves']
  where = {'panel': 'Personalized token accuracy (%)'}
  # (10 - 6) % and (10 - 5) % after half of the data.
  assert points(plot, 'x', 'y', **where) == [
    (2, 4.0),
    (4, 5.0),
  ]


def test_accuracy_by_traffic(of_pair):
  plot = of_pair['cost']
  uplink, total = plot.panel_names
  where = {'series': 'FedFish, E = 8'}
  # FedFish sends 2 units up in each of 2 rounds, and receives 1.
  for panel, expected in (
    (uplink, [(0, 0), (2, 1), (4, 2)]),
    (total, [(0, 0), (3, 1), (6, 2)]),
  ):
    assert points(plot, 'x', 'y', panel=panel, **where) == expected


def test_barriers_measured_in_training(tmp_path):
  directory = write_run(tmp_path / 'run')
  lines = (directory / 'metrics.csv').read_text().splitlines()
  cells = ('barrier/loss', '', '0.5', '0.25')
  (directory / 'metrics.csv').write_text(
    ''.join(f'{a},{b}\n' for a, b in zip(lines, cells, strict=True))
  )
  plot = plots_of([directory])['curves']
  panel = 'Barrier (nats per token)'
  assert points(plot, 'x', 'y', panel=panel) == [(1, 0.5), (2, 0.25)]


def test_images_are_no_tokens(tmp_path):
  settings = {'data.corpus': 'mnist_by_writer', 'data.sequence_length': None}
  plot = plots_of([write_run(tmp_path / 'run', settings=settings)])['curves']
  assert plot.panel_names[:2] == [
    'Held-out loss (nats per image)',
    'Held-out accuracy (%)',
  ]


def test_no_plot_without_values(tmp_path):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n0\n')
  assert plots_of([directory]) == {}


def test_barriers_of_a_pair(of_pair):
  plot = of_pair['barrier']
  # FedFish 5.2 - 5 and 4.3 - 4; FedAvg 5.5 - 5 and 4.2 - 4.
  assert points(plot, 'point', 'x', 'y') == [
    ('client0', 0.2, 0.5),
    ('client1', 0.3, 0.2),
  ]
  # An evaluation of round r replays round r + 1.
  assert set(plot.table['series']) == {'round 3'}


def test_barriers_are_paired_by_seeds_and_rounds(tmp_path):
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
  plot = plots_of(directories)['barrier']
  assert points(plot, 'series', 'x', 'y') == [
    ('round 3', 0.2, 0.3),
    ('round 3', 0.2, 0.4),
  ]


def test_each_method_has_its_barriers_against_the_baseline(tmp_path):
  directories = []
  for name in ('fed_avg', 'fed_fish', 'fed_prox'):
    directories.append(write_run(tmp_path / name, algorithm=name))
    row = (4.0, 4.0 + len(directories) / 4, 0.2, 0.1)
    write_evaluation(directories[-1], 'e', barriers=(row,))
  plots = plots_of(directories)
  titles = [plots[name].title for name in ('barrier_1', 'barrier_2')]
  assert titles == [
    'Client-Server Barrier, FedFish and FedAvg',
    'Client-Server Barrier, FedProx and FedAvg',
  ]
  assert points(plots['barrier_2'], 'x', 'y') == [(0.75, 0.25)]


_IDS = ('a.org', 'b.org', 'c.org')


def _write_affinities(run, values, clusters=(1, 0, 1)):
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


# The infinite affinity is left out.
_AFFINITY = ((5.0, -1.0, 2.0), (-3.0, 4.0, 0.0), (1.0, -2.0, math.inf))


def test_affinities_by_cluster(tmp_path):
  directories = []
  for seed, factor in ((1, 1), (2, 3)):
    run = write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    values = [[factor * x for x in row] for row in _AFFINITY]
    _write_affinities(run, values)
    directories.append(run)
  plots = plots_of(directories)
  plot = plots['affinity_1']
  # Cluster 0 is b. Means over seeds are twice those of the first.
  assert points(plot, 'series', 'x', 'y') == [
    ('0: b.org', '1: a.org', -6.0),
    ('0: b.org', '0: b.org', 8.0),
    ('0: b.org', '1: c.org', 0.0),
    ('1: a.org', '1: a.org', 10.0),
    ('1: a.org', '0: b.org', -2.0),
    ('1: a.org', '1: c.org', 4.0),
    ('1: c.org', '1: a.org', 2.0),
    ('1: c.org', '0: b.org', -4.0),
  ]
  # a and c: 2 (2 + 1) / 2 within; 2 (-1 - 3 + 0 - 2) / 4 across.
  words = 'Mean affinity: within clusters +3.000, across clusters −3.000.'
  assert words in plot.caption
  assert plots['own_test_scores'].panel_names == [
    'Loss (nats per token)',
    'Token accuracy (%)',
  ]


def test_affinities_without_clusters(tmp_path):
  run = write_run(tmp_path / 'run')
  _write_affinities(run, _AFFINITY, (-1, -1, -1))
  plot = plots_of([run])['affinity_1']
  assert plot.table['series'].iloc[0] == 'a.org'
  # (-1 + 2 - 3 + 0 + 1 - 2) / 6.
  assert 'Mean affinity: between clients −0.500.' in plot.caption
