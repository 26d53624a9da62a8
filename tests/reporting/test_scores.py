"""Samples of scores, and their means, against numbers by hand."""

import os

import pytest
from report_runs import (
  read_report,
  write_evaluation,
  write_methods,
  write_run,
  write_scored,
)

from tff_fedfish.reporting.estimates import estimate
from tff_fedfish.reporting.runs import HELD_OUT


def _shown(directories, fraction=0.0):
  shown = read_report(directories).shown_of(HELD_OUT)
  return [sample for sample in shown if sample.fraction == fraction]


@pytest.mark.parametrize(
  'by_seed, ends, is_finding',
  [
    # All of one of two clients is drawn in a quarter of the resamples: 2 away,
    # times the scale of two clients, 12.7062 / 1.96 sqrt(2) = 9.1680.
    ([(4.0, 0.0)], (2 - 18.336, 2 + 18.336), False),
    ([(1.0, 1.0), (3.0, 3.0)], (None, None), False),
    # Standard deviation 1: 2 -/+ 4.3027 / sqrt(3) = 2.4842.
    ([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)], (-0.4842, 4.4842), True),
    # The seeds' means are equal, but the clients are not.
    ([(4.0, 0.0)] * 3, (2 - 18.336, 2 + 18.336), True),
  ],
)
@pytest.mark.parametrize('minus', [0.0, 2.0])
def test_estimates(by_seed, ends, is_finding, minus):
  scores, other = (
    {str(n): dict(zip((b'x', b'y'), s, strict=True)) for n, s in enumerate(own)}
    for own in (
      [[value + minus for value in seed] for seed in by_seed],
      [[minus] * 2] * len(by_seed),
    )
  )
  found = estimate(scores, other)
  assert found.mean == 2.0
  assert found.by_seed == tuple(sum(seed) / 2 for seed in by_seed)
  assert (found.low, found.high) == pytest.approx(ends, abs=1e-4)
  assert found.is_finding == is_finding


def test_a_sample_over_seeds(tmp_path):
  losses = [{0.0: (7.0 - n, 9.0), 0.5: (5.0 - n, 9.5)} for n in range(3)]
  findings = read_report(write_methods(tmp_path, {'fed_avg': losses}))
  before, after = findings.shown
  assert before.arm.label == 'FedAvg, E = 1'
  assert before.estimates['loss'].by_seed == (8.0, 7.5, 7.0)
  # Accuracies are (10 - loss) / 100.
  assert before.estimates['accuracy'].mean == pytest.approx(0.025)
  assert after.losses.tolist() == [4.0, 9.5]
  assert after.mean_by_client('loss_before') == [6.0, 9.0]
  assert (before.hurt, after.hurt) == (None, 0.5)


@pytest.mark.parametrize(
  'other, is_shown',
  [
    # More clients, then more rows, then the newest; a later round before all.
    ({'client_ids': 'abc'}, True),
    ({'client_ids': 'a'}, False),
    ({'rows': 5}, True),
    ({'rows': 3}, False),
    ({'age': 1}, False),
    ({'age': -1}, True),
    ({'round_num': 1, 'client_ids': 'abc'}, False),
    ({'age': -1, 'personalization': {'split_unit': 'lines'}}, True),
  ],
  ids=str,
)
def test_which_of_several_evaluations_counts(tmp_path, other, is_shown):
  run = write_scored(tmp_path / 'run', 6.0)
  options = {'client_ids': 'ab', **other}
  rows, age = options.pop('rows', 4), options.pop('age', 0)
  losses = {0.0: (9.0,) * len(options['client_ids'])}
  # Names say nothing.
  path = write_evaluation(run, 'a', losses=losses, **options)
  table = path / 'per_client.csv'
  table.write_text(table.read_text().replace(',4,', f',{rows},'))
  first = (run / 'evaluations' / 'e' / 'summary.json').stat().st_mtime
  for file in path.iterdir():
    os.utime(file, (first - age, first - age))
  [sample] = _shown([run])
  assert sample.estimates['loss'].mean == (9.0 if is_shown else 6.0)


def test_metrics_are_means_in_common_rounds(tmp_path):
  curves = (8.0, 7.0, None), (7.0, 6.0, 5.0, 4.0)
  runs = [
    write_run(
      tmp_path / str(seed),
      held_out_losses=losses,
      num_rounds=9,
      settings={'seeds.cohort_seed': seed},
    )
    for seed, losses in enumerate(curves)
  ]
  [arm] = read_report(runs).arms
  # Round 2 has no score of seed 0, round 3 no row: neither has a mean.
  assert arm.series('round', 'held_out/loss') == [(0, 7.5), (1, 6.5)]
  assert arm.last('communication/uplink_units') == 2.0


@pytest.mark.parametrize('seed', [0, 1])
def test_a_barrier_of_one_seed(tmp_path, seed):
  runs = write_methods(tmp_path, {'fed_avg': [6.0, 6.0]})
  write_evaluation(runs[seed], 'b', barriers=((4.0, 4.5, 0.2, 0.1),))
  columns = {column.key: column for column in read_report(runs).columns}
  [value] = columns['barrier/loss'].values.values()
  assert value.mean == 0.5
