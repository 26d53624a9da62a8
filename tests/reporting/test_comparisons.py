"""Differences of two sides against numbers by hand."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import add_metrics, read_report, write_run, write_scored

from tff_fedfish.reporting import comparisons, loading
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.pairs import SAME, Pair
from tff_fedfish.reporting.runs import HELD_OUT
from tff_fedfish.reporting.scores import Sample

_NAN = float('nan')


def test_a_pair_of_single_runs(pair):
  found = read_report(pair).comparisons
  assert [(str(c.subject), c.fraction) for c in found] == [
    ('held-out clients', 0.0),
    ('held-out clients', 0.5),
    ('clients of sotu_by_president', 0.0),
    ('clients of sotu_by_president', 0.25),
  ]
  # FedFish 5.5, 6.5, 5, 6 and FedAvg 6, 7, 5, 6: -0.5, -0.5, 0, 0.
  loss = found[0].differences['loss']
  assert (loss.mean, loss.low, loss.high) == (-0.25, -0.5, 0.0)
  assert loss.share_below_zero == 0.5
  assert (found[0].num_clients, found[0].num_seeds) == (4, 1)
  # Accuracies are (10 - loss) / 100.
  assert found[0].differences['accuracy'].mean == pytest.approx(0.0025)
  # 6.5 - 7 and 7 - 7.5: lower for all clients, but one seed is no finding.
  assert found[2].differences['loss'].high == -0.5
  assert [c.verdict() for c in found] == [''] * 4
  # The third client alone was hurt, with FedAvg.
  assert [side.hurt for side in found[1].sides] == [0.0, 0.25]


@pytest.mark.parametrize(
  'gains, verdict',
  [
    ((1.0, 3.0), ''),
    ((2.0, 2.1, 2.2), 'lower'),
    ((-2.0, -2.1, -2.2), 'higher'),
    # 2 -/+ 4.3027 / sqrt(3) = 2.4842.
    ((1.0, 2.0, 3.0), 'undecided'),
    # An interval that ends at 0 decides nothing.
    ((0.0, 0.0, 0.0), 'undecided'),
  ],
)
def test_verdicts(tmp_path, gains, verdict):
  runs = [
    write_scored(
      tmp_path / f'{method}{seed}',
      (8.0 - gain * (method == 'fed_fish'),) * 2,
      algorithm=method,
      seed=seed,
    )
    for seed, gain in enumerate(gains)
    for method in ('fed_avg', 'fed_fish')
  ]
  [comparison] = read_report(runs).comparisons
  assert comparison.verdict() == verdict
  by_seed = comparison.differences['loss'].by_seed
  assert by_seed == pytest.approx([-gain for gain in gains])


def test_seeds_of_one_side_alone_do_not_count(tmp_path):
  # Seed 3 of FedAvg has the lowest loss, and no partner.
  runs = [
    write_scored(
      tmp_path / f'{method}{seed}', losses, algorithm=method, seed=seed
    )
    for method, seeds in (('fed_avg', (0, 1, 3)), ('fed_fish', (0, 1, 2)))
    for seed, losses in zip(seeds, ((6.0,), (6.0,), (1.0,)), strict=True)
  ]
  [comparison] = read_report(runs).comparisons
  assert (comparison.num_seeds, comparison.problem) == (2, '')
  assert comparison.differences['loss'].mean == 0.0


def test_dp_shares_the_other_seeds(tmp_path):
  privacy = {
    'local_privacy.clip_norm': 1.0,
    'local_privacy.noise_multiplier': 1,
  }
  runs = [
    write_scored(
      tmp_path / f'{name}{seed}',
      (6.0 + (name == 'private'),),
      algorithm='fed_avg',
      seed=seed,
      settings=own and own | {'seeds.privacy_seed': 40 + seed},
    )
    for seed in range(3)
    for name, own in (('private', privacy), ('plain', {}))
  ]
  [comparison] = read_report(runs).comparisons
  assert (comparison.num_seeds, comparison.verdict()) == (3, 'lower')


@pytest.fixture(name='sides', scope='module')
def _sides(tmp_path_factory):
  root = tmp_path_factory.mktemp('sides')
  return [
    Arm(
      method,
      tuple(
        loading.load_runs(
          [
            write_run(
              root / f'{method}{seed}',
              algorithm=method,
              settings={'seeds.model_seed': seed},
            )
            for seed in range(3)
          ]
        )
      ),
    )
    for method in ('fed_fish', 'fed_avg')
  ]


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
  pair = Pair(question=SAME, setting='', names=names, arms=tuple(arms))
  # Which rounds chose a checkpoint only evaluations know.
  return comparisons.compare_samples(pair, tuple(samples))


def test_clients_that_neither_side_has_leave(sides):
  theirs = [[1.0, 2.0, _NAN]] * 3
  ours = [[0.5, 1.5, math.inf], [0.4, 1.4, 0.0], [0.6, 1.6, _NAN]]
  found = _compare(sides, (ours, theirs))
  assert (found.problem, found.num_clients) == ('', 2)
  assert found.differences['loss'].by_seed == pytest.approx((-0.5, -0.6, -0.4))


@pytest.mark.parametrize(
  'ours, theirs, problem',
  [
    ([1.0, _NAN], [1.0, 2.0], '1 of 2 clients of ours finite'),
    ([1.0, 2.0], [_NAN, _NAN], '0 of 2 clients of theirs finite'),
    (
      [1.0, _NAN],
      [_NAN, 2.0],
      '1 of 2 clients of ours finite, 1 of 2 clients of theirs finite',
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
    assert found.differences['loss'].by_seed == pytest.approx(by_seed)
    assert found.verdict()


def _write_curves(root, losses, *, diverged=(), **options):
  """Writes runs of both methods: method -> a curve per seed.

  FedFish sends 3 models a round, FedAvg 2.
  """
  runs = []
  for method, by_seed in losses.items():
    for seed, curve in enumerate(by_seed):
      run = write_scored(
        root / f'{method}{seed}',
        (5.0,) * 2,
        algorithm=method,
        seed=seed,
        held_out_losses=curve,
        num_rounds=2,
        units_per_round=2 if method == 'fed_fish' else 1,
        settings={'training.max_non_finite_rounds': 1}
        | options.get(method, {}),
      )
      if (method, seed) in diverged:
        add_metrics(run, train__update_is_non_finite=(0, 0, 1))
      runs.append(run)
  return read_report(runs)


def test_equal_bytes(tmp_path):
  [row] = _write_curves(
    tmp_path,
    {
      'fed_avg': [(8.0, 7.0, 6.0), (8.0, 7.0, 6.1), (8.0, 7.0, 6.2)],
      'fed_fish': [(8.0, 6.0, 5.4), (8.0, 6.0, 5.4), (8.0, 6.0, 5.4)],
    },
  ).at_equal_bytes
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


def test_equal_bytes_of_one_seed(tmp_path):
  losses = {'fed_avg': [(8.0, 7.0, 6.0)], 'fed_fish': [(8.0, 6.0, 5.4)]}
  [row] = _write_curves(tmp_path, losses).at_equal_bytes
  loss = row.differences['loss']
  assert (loss.mean, loss.low) == (pytest.approx(-0.2), None)
  assert row.verdict() == ''


def test_equal_bytes_with_a_seed_that_diverged(tmp_path):
  losses = dict.fromkeys(('fed_avg', 'fed_fish'), [(8.0, 7.0, 6.0)] * 3)
  findings = _write_curves(tmp_path, losses, diverged=[('fed_fish', 2)])
  [row] = findings.at_equal_bytes
  assert row.problem == '1 of 3 seeds of FedFish diverged'
  assert row.verdict() == ''


@pytest.mark.parametrize(
  'options',
  [{'evaluation.num_clients': 4}, {'evaluation.split_unit': 'sequences'}],
)
def test_curves_of_other_samples_are_not_read_at_equal_bytes(tmp_path, options):
  losses = dict.fromkeys(('fed_avg', 'fed_fish'), [(8.0, 7.0, 6.0)])
  findings = _write_curves(tmp_path, losses, fed_avg=options)
  assert findings.comparisons and not findings.at_equal_bytes
