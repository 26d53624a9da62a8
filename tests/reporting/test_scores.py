"""The tables of a report against numbers by hand."""

import pandas as pd
import pytest
from report_runs import write_evaluation, write_run, write_sweep

from tff_fedfish.reporting import comparisons, loading, scores

_SWEEP = {('fed_avg', 4, 2): 1.0, ('fed_fish', 4, 2): 2.0}


def _read(directories):
  return scores.read_scores(loading.load_runs(directories))


def _means(table, measure, fraction=None, **where):
  """Returns the means that are shown."""
  table = table[table['is_shown'] & (table['measure'] == measure)]
  if fraction is not None:
    table = table[table['fraction'] == fraction]
  for name, value in where.items():
    table = table[table[name] == value]
  return list(table.itertuples())


@pytest.fixture(name='of_sweep', scope='module')
def _of_sweep(tmp_path_factory):
  """Scores of FedAvg and FedFish, three seeds each; read only."""
  return _read(write_sweep(tmp_path_factory.mktemp('sweep'), _SWEEP))


@pytest.fixture(name='of_pair', scope='module')
def _of_pair(pair):
  return _read(pair)


def test_scores_of_single_runs_are_those_of_their_summaries(of_pair):
  _, fish = _means(of_pair.means, 'loss', 0.0, subject='held-out clients')
  # (5.5 + 6.5 + 5 + 6) / 4, -/+ 0.25 as the summary says.
  assert (fish.mean, fish.low, fish.high) == (5.75, 5.5, 6.0)
  assert (fish.arm, fish.round, fish.num_seeds) == ('FedFish, E = 8', 2, 1)
  # Barriers 5.2 - 5 = 0.2 and 4.3 - 4 = 0.3; errors 0.30 - 0.25 and 0.
  [_, barrier] = _means(of_pair.means, 'barrier/loss')
  assert barrier.mean == pytest.approx(0.25)
  [_, error] = _means(of_pair.means, 'barrier/error')
  assert error.mean == pytest.approx(0.025)
  # 5 -> 5.5 of the third client alone, and none of 5.5 -> 5, ...
  average, fish = _means(of_pair.means, 'hurt', subject='held-out clients')
  assert (average.mean, fish.mean) == (0.25, 0.0)


def test_means_over_seeds(of_sweep):
  average, fish = _means(of_sweep.means, 'loss', 0.0)
  assert (average.arm, fish.arm) == ('FedAvg, E = 4', 'FedFish, E = 4')
  # 8 - 1 - (0, 0.1, 0.2): 7.0, 6.9, 6.8 with both clients.
  assert average.mean == pytest.approx(6.9)
  # All of one seed, the extreme, is drawn in 1 of 27 resamples: 3.7 %.
  assert (average.low, average.high) == pytest.approx((6.8, 7.0))
  assert (average.num_seeds, average.num_clients) == (3, 2)
  # Accuracies are (10 - loss) / 100.
  accuracy, _ = _means(of_sweep.means, 'accuracy', 0.5)
  assert accuracy.mean == pytest.approx(0.041)
  rows = of_sweep.clients
  rows = rows[(rows['arm'] == 'FedAvg, E = 4') & (rows['fraction'] == 0.5)]
  assert list(rows['loss_before']) == pytest.approx([6.9, 6.9])
  assert list(rows['loss_after']) == pytest.approx([5.9, 5.9])


def _write_seeds(root, *evaluations):
  """Writes a run for each evaluation, with a seed of its own."""
  runs = []
  for seed, options in enumerate(evaluations):
    settings = {'seeds.model_seed': seed}
    runs.append(write_run(root / str(seed), settings=settings))
    if options:
      write_evaluation(runs[-1], 'e', **options)
  return runs


def test_only_clients_and_fractions_of_all_seeds_count(tmp_path):
  runs = _write_seeds(
    tmp_path,
    {'client_ids': ('a', 'b'), 'losses': {0.0: (6.0, 7.0), 0.5: (1.0, 1.0)}},
    {'client_ids': ('b', 'c'), 'losses': {0.0: (8.0, 1.0), 0.25: (1.0, 1.0)}},
    None,
  )
  table = _read(runs)
  # b alone: 7 and 8.
  [loss] = _means(table.means, 'loss')
  assert (loss.mean, loss.fraction) == (7.5, 0.0)
  assert (loss.num_seeds, loss.num_left_out) == (2, 2)
  assert list(table.clients['client_id']) == [b'b']


def test_other_fine_tuning_is_another_measurement(tmp_path):
  runs = _write_seeds(
    tmp_path,
    {'losses': {0.0: (6.0,) * 4}, 'round_num': 1},
    {'losses': {0.0: (7.0,) * 4}, 'round_num': 1},
  )
  # A later one, of one seed.
  write_evaluation(
    runs[0], 'z', losses={0.0: (1.0,) * 4}, personalization={'epochs': 9}
  )
  [loss] = _means(_read(runs).means, 'loss')
  assert (loss.mean, loss.num_seeds) == (6.5, 2)


def test_facts_of_an_evaluation_over_seeds(tmp_path):
  runs = _write_seeds(
    tmp_path,
    *(
      {
        'barriers': ((4.0, 4.0 + barrier, 0.2, 0.1),),
        'facts': {'unknown_token_fraction': unknown},
      }
      for barrier, unknown in ((0.5, 0.25), (1.0, None))
    ),
  )
  means = _read(runs).means
  [barrier] = _means(means, 'barrier/loss')
  assert barrier.mean == 0.75
  # A mean only where all seeds have it.
  assert _means(means, 'unknown_tokens') == []


@pytest.mark.parametrize('with_barrier', [0, 1])
def test_a_barrier_of_one_seed(tmp_path, with_barrier):
  options = [{'kind': 'held_out'}] * 2
  options[with_barrier] = {'barriers': ((4.0, 4.5, 0.2, 0.1),)}
  runs = _write_seeds(tmp_path, *options)
  [barrier] = _means(_read(runs).means, 'barrier/loss')
  assert (barrier.mean, barrier.num_seeds) == (0.5, 1)


def test_metrics_are_means_in_common_rounds(tmp_path):
  runs = [
    write_run(
      tmp_path / str(seed),
      held_out_losses=losses,
      num_rounds=9,
      settings={'seeds.cohort_seed': seed},
    )
    for seed, losses in ((1, (8.0, 7.0, None)), (2, (7.0, 6.0, 5.0, 4.0)))
  ]
  [arm] = _read(runs).arms
  # Round 2 has no score of seed 1, round 3 no row: neither has a mean.
  curve = scores.curve([arm], 'round', 'held_out/loss')
  assert curve.to_numpy().tolist() == [
    [arm.label, 0, 0, 7.5, 7.0, 8.0],
    [arm.label, 1, 1, 6.5, 6.0, 7.0],
  ]
  epochs = scores.curve([arm], 'local_epochs', 'communication/uplink_units')
  assert list(epochs['x']) == [0, 1, 2]
  assert arm.last('communication/uplink_units') == 2.0


def test_comparisons_of_a_pair(of_pair):
  table = of_pair.comparisons
  rows = {
    (row.subject, row.fraction, row.measure): row for row in table.itertuples()
  }
  assert list(rows) == [
    (subject, fraction, measure)
    for subject, fractions in (
      ('held-out clients', (0.0, 0.5)),
      ('clients of sotu_by_president', (0.0, 0.25)),
    )
    for fraction in fractions
    for measure in ('loss', 'accuracy')
  ]
  # FedFish 5.5, 6.5, 5, 6 and FedAvg 6, 7, 5, 6: -0.5, -0.5, 0, 0.
  row = rows['held-out clients', 0.0, 'loss']
  assert (row.method, row.baseline, row.setting) == ('FedFish', 'FedAvg', '')
  assert (row.mean, row.share_below_zero) == (-0.25, 0.5)
  assert (row.num_clients, row.num_seeds) == (4, 1)
  assert (row.ci_low, row.ci_high) == (-0.5, 0.0)
  # An interval that ends at 0 decides nothing.
  assert comparisons.verdict(row) == 'undecided'
  # Accuracies are (10 - loss) / 100.
  accuracy = rows['held-out clients', 0.0, 'accuracy']
  assert accuracy.mean == pytest.approx(0.0025)
  # 6.5 - 7 and 7 - 7.5 (both lost 0.5), so that all resamples are -0.5.
  row = rows['clients of sotu_by_president', 0.0, 'loss']
  assert (row.ci_low, row.ci_high) == (-0.5, -0.5)
  assert comparisons.verdict(row) == 'FedFish lower'


@pytest.mark.parametrize(
  'gains, interval, ends',
  [
    # Two seeds have no interval, but their differences.
    ((1.0, 3.0), 'by seed −1.0 and −3.0', None),
    # The bootstrap has -3 to -1; Student's t -2 +- 4.3027 / sqrt(3).
    ((1.0, 2.0, 3.0), '−4.5 to +0.5', (-4.4842, 0.4842)),
  ],
)
def test_few_seeds_decide_nothing(tmp_path, gains, interval, ends):
  runs = []
  for seed, gain in enumerate(gains):
    for algorithm, loss in (('fed_avg', 8.0), ('fed_fish', 8.0 - gain)):
      run = write_run(
        tmp_path / f'{algorithm}_{seed}',
        algorithm=algorithm,
        settings={'seeds.model_seed': seed},
      )
      write_evaluation(run, 'e', losses={0.0: (loss,) * 4})
      runs.append(run)
  row, _ = _read(runs).comparisons.itertuples()
  assert (row.mean, row.num_seeds) == (-2.0, len(gains))
  assert comparisons.shown_interval(row, '+.1f') == interval
  assert comparisons.verdict(row) == 'undecided'
  if ends is None:
    assert row.ci_low is row.ci_high is None
  else:
    assert (row.ci_low, row.ci_high) == pytest.approx(ends, abs=1e-4)


def test_the_wider_of_two_intervals():
  # Clients differ by 3 and -1 with each of three seeds, whose means are 1: the
  # bootstrap over two clients has -1 to 3, Student's t over the seeds 1 to 1.
  scores_of = pd.DataFrame({'loss': [3.0, -1.0]}, index=[b'x', b'y'])
  sides = dict.fromkeys('123', scores_of), dict.fromkeys('123', 0 * scores_of)
  row = comparisons.difference(*sides, 'loss')
  assert (row['ci_low'], row['ci_high']) == (-1.0, 3.0)


def test_clients_without_a_finite_loss_are_left_out(tmp_path):
  run = write_run(tmp_path / 'run')
  losses = {0.0: (6.0,) * 4, 0.5: (5.0, 9.0, 4.0, 7.0)}
  path = write_evaluation(run, 'e', losses=losses) / 'per_client.csv'
  path.write_text(path.read_text().replace(',9.0,', ',nan,'))
  table = _read([run])
  assert len(table.clients[table.clients['fraction'] == 0.5]) == 3
