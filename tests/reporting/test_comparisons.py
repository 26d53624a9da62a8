"""Differences of two sides against numbers by hand."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import add_metrics, read_report, write_methods, write_scored

from tff_fedfish.reporting import comparison_tables, comparisons
from tff_fedfish.reporting.pairs import SAME, Pair
from tff_fedfish.reporting.runs import HELD_OUT
from tff_fedfish.reporting.scores import Sample

_NAN = float('nan')
_ROUND_4 = {'round_num': 4}


def test_dp_shares_the_other_seeds(tmp_path):
  # A seed of one side alone, whatever its loss, has no partner.
  losses = {'fed_avg': [6.0] * 3 + [1.0]}
  runs = write_methods(tmp_path / 'plain', losses)
  settings = {'seeds.privacy_seed': 41, 'local_privacy.clip_norm': 1}
  settings['local_privacy.noise_multiplier'] = 1
  options = {'all': {'settings': settings}}
  runs += write_methods(tmp_path / 'private', {'fed_avg': [7.0] * 3}, **options)
  [comparison] = read_report(runs).comparisons
  assert (comparison.num_seeds, comparison.verdict()) == (3, 'higher')


@pytest.fixture(name='sides', scope='module')
def _sides(tmp_path_factory):
  """Arms of three seeds."""
  losses = {'fed_avg': [6.0] * 3, 'fed_fish': [6.0] * 3}
  return read_report(
    write_methods(tmp_path_factory.mktemp('sides'), losses)
  ).arms


def _compare(arms, losses):
  """Compares [side][seed][client] losses; accuracies are half of them."""
  samples = []
  for arm, by_seed in zip(arms, losses, strict=True):
    tables = {}
    for run, own in zip(arm.runs, by_seed, strict=True):
      values = {'loss_after': own, 'accuracy_after': [v / 2 for v in own]}
      ids = pd.Index([b'%d' % n for n in range(len(own))], dtype=object)
      tables[run.seeds] = pd.DataFrame(values, index=ids)
    place = {'subject': HELD_OUT, 'round_num': 2, 'fraction': 0.0, 'key': ()}
    samples.append(Sample(arm=arm, evaluations={}, by_seed=tables, **place))
  names = ('ours', 'theirs')
  words = {'names': names, 'names_of_curves': names}
  pair = Pair(question=SAME, setting='', arms=tuple(arms), **words)
  # Which rounds chose a checkpoint only evaluations know.
  return comparisons.compare_samples(pair, tuple(samples))


def test_repetitions_of_the_noise_alone(tmp_path):
  private = {'local_privacy.clip_norm': 1.0}
  private['local_privacy.noise_multiplier'] = 1.0

  def write(method, losses, first=0, settings=private):
    return [
      write_scored(
        tmp_path / f'{method}{first + n}',
        loss,
        algorithm=method,
        settings=settings | {'seeds.privacy_seed': first + n},
      )
      for n, loss in enumerate(losses)
    ]

  prox = write('fed_prox', [5.0, 5.1, 5.5])
  # One seed, with the mean of its draws, 5.2, whatever those of the other are.
  for average, mean in (
    (write('fed_avg', [6.0, 5.9, 6.1]), 6.0),
    (write('fed_avg', [6.0], 7), 6.0),
    (write('fed_avg', [5.0], 8, {}), 5.0),
  ):
    report = read_report([*average, *prox])
    [found] = report.comparisons
    difference = found.differences['loss']
    assert difference.by_seed == pytest.approx((5.2 - mean,))
    assert (found.num_seeds, difference.is_finding) == (1, False)
    sample = report.shown[-1]
    assert sample.estimates['loss'].by_seed == pytest.approx((5.2,))


def test_clients_that_neither_side_has_leave(sides):
  theirs = [[1.0, 2.0, _NAN]] * 3
  ours = [[0.5, 1.5, math.inf], [0.4, 1.4, 0.0], [0.6, 1.6, _NAN]]
  found = _compare(sides, (ours, theirs))
  assert (found.problem, found.num_clients) == ('', 2)
  assert found.differences['loss'].by_seed == pytest.approx((-0.5, -0.6, -0.4))


@pytest.mark.parametrize(
  'ours, theirs, problem',
  [
    ([1.0, _NAN], [1.0, 2.0], '1 of 2 clients of ours finite in every seed'),
    ([1.0, 2.0], [_NAN, _NAN], '0 of 2 clients of theirs finite in every seed'),
    (
      [1.0, _NAN],
      [_NAN, 2.0],
      '1 of 2 clients of ours finite in every seed, '
      '1 of 2 clients of theirs finite in every seed',
    ),
  ],
)
def test_clients_that_one_side_alone_has(sides, ours, theirs, problem):
  found = _compare(sides, ([ours] * 3, [theirs] * 3))
  assert found.problem == problem
  assert found.verdict() == found.verdict('accuracy') == ''


_LOSSES = st.sampled_from([0.5, 1.0, 3.0, _NAN, math.inf])


@given(data=st.data(), num_clients=st.integers(1, 4))
def test_a_verdict_is_of_the_clients_of_both(sides, data, num_clients):
  clients = st.lists(_LOSSES, min_size=num_clients, max_size=num_clients)
  seeds = st.lists(clients, min_size=3, max_size=3)
  losses = data.draw(seeds), data.draw(seeds)
  finite = [
    {n for n in range(num_clients) if all(math.isfinite(s[n]) for s in side)}
    for side in losses
  ]
  found = _compare(sides, losses)
  if finite[0] != finite[1]:
    assert found.problem and not found.verdict()
  elif not finite[0]:
    assert found is None
  else:
    assert (found.problem, found.num_clients) == ('', len(finite[0]))
    by_seed = [
      sum(one[n] - two[n] for n in finite[0]) / len(finite[0])
      for one, two in zip(*losses, strict=True)
    ]
    loss = found.differences['loss']
    assert loss.by_seed == pytest.approx(by_seed)
    if len(finite[0]) == 1:
      # One client says nothing of others.
      assert loss.low is None and not found.verdict()
      return
    # An interval that ends at 0 decides nothing.
    lower, higher = 'lower' * (loss.high < 0), 'higher' * (loss.low > 0)
    assert found.verdict() == (lower or higher or 'undecided')


def _at_equal_bytes(root, losses, *, has_diverged=False, **options):
  """Reads runs of both methods: method -> a curve per seed.

  FedFish sends 3 models up and down in a round, FedAvg 2.
  """
  settings = {'training.max_non_finite_rounds': 1}
  runs = [
    write_scored(
      root / f'{method}{seed}',
      6.0,
      algorithm=method,
      seed=seed,
      held_out_losses=curve,
      units_per_round=2 if method == 'fed_fish' else 1,
      settings=settings | options.get(method, {}),
    )
    for method, by_seed in losses.items()
    for seed, curve in enumerate(by_seed)
  ]
  if has_diverged:
    add_metrics(runs[-1], train__update_is_non_finite=(0, 0, 1))
  findings = read_report(runs)
  assert findings.comparisons
  return findings.at_equal_bytes


def test_equal_bytes(tmp_path):
  losses = {
    'fed_avg': [(8.0, 7.0, 6.0 + n / 10) for n in range(3)],
    'fed_fish': [(8.0, 6.0, 5.4)] * 3,
  }
  [row] = _at_equal_bytes(tmp_path, losses)
  # FedAvg ends at 4 models up and down, FedFish is at 3 after round 1 and at 6
  # after round 2: 6 - 0.6 / 3 = 5.8. Minus 6, 6.1 and 6.2.
  assert row.traffic == 4
  loss = row.differences['loss']
  assert loss.by_seed == pytest.approx((-0.2, -0.3, -0.4))
  # Standard deviation 0.1: 0.3 -/+ 4.3027 * 0.1 / sqrt(3) = 0.2484.
  assert (loss.low, loss.high) == pytest.approx((-0.5484, -0.0516), abs=1e-4)
  assert (row.num_seeds, row.verdict()) == (3, 'lower')
  # Accuracies are round / 100, in favor of FedAvg: 1 1/3 points, and 2.
  assert row.differences['accuracy'].mean == pytest.approx(-1 / 150)
  assert row.is_apart


def test_equal_bytes_are_not_after_the_rounds_that_were_scored(tmp_path):
  stops = {'settings': {'training.patience': 1}, 'num_rounds': 9}
  losses = {'fed_avg': [6.0] * 3, 'fed_fish': [5.0] * 3}
  short, longer = (8.0, 7.0, 7.5), (8.0, 7.0, 6.0, 5.0, 5.5)
  options = {
    'fed_fish': stops | {'held_out_losses': short},
    'fed_avg': stops | {'held_out_losses': longer, 'evaluation': _ROUND_4},
  }
  findings = read_report(write_methods(tmp_path, losses, **options))
  scored, curves = comparison_tables.comparison_tables(findings)
  # FedAvg is at 4 models after round 2, too.
  assert scored.rows[0][0].text == 'FedFish (round 2) − FedAvg (round 4)'
  assert curves.rows[0][0].text == 'FedFish − FedAvg'


def test_equal_bytes_without_a_verdict(tmp_path):
  losses = {'fed_avg': [(8.0, 7.0, 6.0)], 'fed_fish': [(8.0, 6.0, 5.4)]}
  [row] = _at_equal_bytes(tmp_path / 'one', losses)
  loss = row.differences['loss']
  assert (loss.mean, loss.low) == (pytest.approx(-0.2), None)
  assert row.verdict() == ''
  three = {method: curves * 3 for method, curves in losses.items()}
  [row] = _at_equal_bytes(tmp_path / 'three', three, has_diverged=True)
  assert row.problem == '1 of 3 seeds of FedFish diverged'
  assert row.verdict() == ''
  # Curves of other clients are not read.
  other = {'evaluation.num_clients': 4}
  assert _at_equal_bytes(tmp_path / 'other', losses, fed_avg=other) == []
