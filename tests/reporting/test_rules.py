"""What a page may say of runs that are easily compared wrongly."""

import io

import pandas as pd
import pytest
from report_runs import (
  add_metrics,
  read_report,
  write_evaluation,
  write_run,
  write_scored,
)

from tff_fedfish.reporting import (
  comparison_tables,
  comparisons,
  figures_of_report,
  headline,
  notes,
  tables,
)

_BASE = tuple(6.0 + n / 10 for n in range(8))
_DP = {'local_privacy.clip_norm': 1.0, 'local_privacy.noise_multiplier': 2.0}
_NAN = float('nan')


def _plus(gain, losses=_BASE):
  return tuple(loss + gain for loss in losses)


def _write_pair(root, average=0.0, fish=-0.3, seeds=(None,), **options):
  """Writes both methods: losses `_BASE` plus a gain, or a gain per seed."""
  runs = []
  for method, gains in (('fed_avg', average), ('fed_fish', fish)):
    gains = gains if isinstance(gains, tuple) else (gains,) * len(seeds)
    for seed, gain in zip(seeds, gains, strict=True):
      path = root / f'{method}{seed}'
      given = options.get(method, {})
      losses = _plus(gain)
      run = write_scored(path, losses, algorithm=method, seed=seed, **given)
      runs.append(run)
  return runs


def _tables(findings):
  """Returns the tables of comparisons, by title: the texts of their rows."""
  return {
    table.title: [
      [f'{cell.text} | {cell.interval}'.rstrip(' |') for cell in row]
      for row in table.rows
    ]
    for table in comparison_tables.comparison_tables(findings)
  }


def test_everything_that_differs_is_named(tmp_path):
  settings = {'client_work.optimizer': 'adamw', 'aggregation.bits': 4}
  runs = _write_pair(
    tmp_path,
    fed_fish={'settings': settings},
    fed_avg={'settings': {'server.optimizer': 'sgd'}},
  )
  [sentence] = headline.sentences(read_report(runs))
  assert sentence.startswith(
    'One seed, not a finding: the loss of FedFish (AdamW 0.05, server Adam '
    '0.001, 4 bits) was lower than that of FedAvg (SGD 0.05, server SGD 0.001, '
    '32 bits) by 0.300 nats per token on held-out clients (95 % interval over '
    'clients 0.300 to 0.300), '
  )


def test_clients_that_are_not_finite_on_one_side_end_the_comparison(tmp_path):
  tuned = tuple(loss - 0.8 if n >= 5 else _NAN for n, loss in enumerate(_BASE))
  runs = [
    write_scored(tmp_path / method, {0.0: _BASE, 0.5: after}, algorithm=method)
    for method, after in (('fed_avg', _plus(-0.5)), ('fed_fish', tuned))
  ]
  findings = read_report(runs)
  assert headline.sentences(findings)[1] == (
    'After personalization on 50 % of each client’s data there is no verdict: '
    '3 of 8 clients of FedFish finite. It hurts 62 % of the clients with '
    'FedFish and 0 % of the clients with FedAvg.'
  )
  [[row]] = _tables(findings).values()
  assert row[5:7] == [
    '3 of 8 clients of FedFish finite | 50 %, 3 × 1',
    '62 % / 0 %',
  ]
  [table] = tables.score_tables(findings).values()
  assert table.rows[1][2].text == '3 of 8 clients finite'
  lines = _csv(findings)
  assert list(lines['problem'].fillna('')) == [
    *('', ''),
    *['3 of 8 clients of FedFish finite'] * 2,
  ]
  assert lines['mean'].isna().tolist() == [False, False, True, True]


@pytest.mark.parametrize('on_both_sides', [False, True])
def test_seeds_that_diverged(tmp_path, on_both_sides):
  seeds = range(5)
  runs = _write_pair(
    tmp_path,
    seeds=seeds,
    **dict.fromkeys(
      ('fed_avg', 'fed_fish'),
      {'settings': {'training.max_non_finite_rounds': 1}},
    ),
  )
  for run in runs:
    side, seed = run.name[:-1], run.name[-1]
    diverged = seed in '34' and (on_both_sides or side == 'fed_fish')
    add_metrics(run, train__update_is_non_finite=(0, 0, int(diverged)))
  findings = read_report(runs)
  sentences = headline.sentences(findings)
  if on_both_sides:
    assert '8 clients, 3 seeds; ' in sentences[0]
    return
  reason = '2 of 5 seeds of FedFish diverged'
  assert sentences == [
    f'No verdict on FedFish against FedAvg on held-out clients: {reason}.'
  ]
  [[row]] = _tables(findings).values()
  assert row[1:3] == [reason] * 2
  assert findings.arms[1].label == 'FedFish, E = 1 (2 of 5 diverged)'
  [table] = tables.score_tables(findings).values()
  assert table.rows[1][1].text == '2 of 5 seeds diverged'


def test_one_seed_is_no_finding(tmp_path):
  findings = read_report(_write_pair(tmp_path))
  assert headline.sentences(findings) == [
    'One seed, not a finding: the loss of FedFish was lower than that of '
    'FedAvg by 0.300 nats per token on held-out clients (95 % interval over '
    'clients 0.300 to 0.300), its accuracy higher by 0.30 points (95 % '
    'interval over clients 0.30 to 0.30); 8 clients, 1 seed; uplink 2 models.'
  ]
  assert notes.notes(findings) == [
    'Fewer than three seeds are not a finding: other seeds may rank the runs '
    'differently. three_seeds.sh, beside this page, has the commands for three '
    'seeds.',
    'Intervals of one seed are over its clients.',
  ]


def test_two_seeds_show_both_differences(tmp_path):
  runs = _write_pair(tmp_path, fish=(-0.2, -0.3), seeds=(0, 1))
  [sentence] = headline.sentences(read_report(runs))
  assert sentence == (
    'Two seeds, not a finding: the loss of FedFish was lower than that of '
    'FedAvg by 0.250 nats per token on held-out clients (by seed 0.200 and '
    '0.300), its accuracy higher by 0.25 points (by seed 0.20 and 0.30); '
    '8 clients, 2 seeds; uplink 2 models.'
  )


def test_three_seeds_have_students_t(tmp_path):
  runs = _write_pair(tmp_path, fish=(-0.20, -0.19, -0.18), seeds=(0, 1, 2))
  findings = read_report(runs)
  # Standard deviation 0.01: 0.19 -/+ 4.3027 * 0.01 / sqrt(3) = 0.0248.
  assert headline.sentences(findings) == [
    'The loss of FedFish is lower than that of FedAvg by 0.190 nats per token '
    'on held-out clients (95 % interval 0.165 to 0.215), its accuracy higher '
    'by 0.19 points (95 % interval 0.17 to 0.21); 8 clients, 3 seeds; uplink '
    '2 models.'
  ]
  assert notes.notes(findings) == []


def test_seeds_that_say_different_things_are_undecided(tmp_path):
  runs = _write_pair(tmp_path, fish=(-0.3, -0.2, -0.1), seeds=(0, 1, 2))
  # 0.2 -/+ 4.3027 * 0.1 / sqrt(3) = 0.2484.
  [sentence] = headline.sentences(read_report(runs))
  assert sentence.startswith(
    'Undecided: the loss of FedFish was lower than that of FedAvg by 0.200 '
    'nats per token on held-out clients (95 % interval −0.048 to 0.448, '
    'undecided), '
  )


def test_loss_and_accuracy_that_point_apart(tmp_path):
  runs = _write_pair(tmp_path)
  path = runs[1] / 'evaluations' / 'e' / 'per_client.csv'
  table = pd.read_csv(path)
  table['accuracy_after'] -= 0.02
  table.to_csv(path, index=False)
  [sentence] = headline.sentences(read_report(runs))
  # 0.3 points more, and 2 less.
  assert sentence.startswith(
    'Loss and accuracy point apart; one seed, not a finding: the loss of '
    'FedFish was lower '
  )
  assert ', its accuracy lower by 1.70 points (95 %' in sentence


def _write_grid(root, validation=None):
  """Writes two rates for each method, with the loss of validation clients."""
  gains = {
    'fed_avg': {0.1: 0.5, 0.01: 0.0},
    'fed_fish': {0.1: -0.05, 0.01: 0.2},
  }
  runs = []
  for method, by_rate in gains.items():
    for rate, gain in by_rate.items():
      for seed in range(3):
        settings = {'client_work.learning_rate': rate}
        runs.append(
          write_scored(
            root / f'{method}{rate}_{seed}',
            _plus(gain),
            algorithm=method,
            seed=seed,
            settings=settings,
          )
        )
        if validation:
          values = (9.0, 8.0, validation[rate])
          add_metrics(runs[-1], validation__loss=values)
  return runs


def test_a_choice_on_the_scored_clients_has_no_interval(tmp_path):
  findings = read_report(_write_grid(tmp_path))
  assert headline.sentences(findings) == [
    'The best of 2 against the best of 2, chosen on these clients, so without '
    'an interval: the loss of FedFish (client rate 0.1, best of 2) was lower '
    'than that of FedAvg (client rate 0.01, best of 2) by 0.050 nats per token '
    'on held-out clients, its accuracy higher by 0.05 points; 8 clients, '
    '3 seeds; uplink 2 models.',
    'Of 2 comparisons with FedAvg at the same settings: FedFish has the lower '
    'loss in 1, FedAvg has the lower loss in 1.',
  ]
  found = _tables(findings)
  [row] = found[
    'Each at its best: held-out clients, chosen on held-out clients'
  ]
  assert row[1:3] == ['−0.050 | no interval', '+0.05 | no interval']
  assert [row[1] for row in found['Same settings: held-out clients']] == [
    '−0.550 | −0.550 to −0.550',
    '+0.200 | +0.200 to +0.200',
  ]
  assert notes.notes(findings) == [
    'The best of several trials, chosen on the clients that are scored, looks '
    'better than it is. Validation clients '
    '(client_splits.validation_clients_fraction) make the choice fair.'
  ]


def test_a_choice_on_validation_clients_keeps_the_interval(tmp_path):
  findings = read_report(_write_grid(tmp_path, {0.1: 6.0, 0.01: 7.0}))
  assert headline.sentences(findings)[0].startswith(
    'The loss of FedFish (client rate 0.1, best of 2 on validation clients) is '
    'lower than that of FedAvg (client rate 0.1, best of 2 on validation '
    'clients) by 0.550 nats per token on held-out clients (95 % interval 0.550 '
    'to 0.550), '
  )


def test_three_questions_have_three_tables(tmp_path):
  gains = {('fed_avg', 1): 0.0, ('fed_avg', 4): -0.2, ('fed_fish', 1): -0.1}
  runs = [
    write_scored(
      tmp_path / f'{method}{epochs}',
      _plus(gain),
      algorithm=method,
      num_local_epochs=epochs,
      units_per_round=2 if method == 'fed_fish' else 1,
    )
    for (method, epochs), gain in gains.items()
  ]
  found = _tables(read_report(runs))
  best = 'Each at its best: held-out clients, chosen on held-out clients'
  assert {title: [row[0] for row in rows] for title, rows in found.items()} == {
    'Same settings: held-out clients': ['FedFish − FedAvg'],
    best: ['FedFish (E = 1) − FedAvg (E = 4, best of 2)'],
    'At equal bytes: held-out clients scored while training': [
      'FedFish − FedAvg',
      'FedFish (E = 1) − FedAvg (E = 4, best of 2)',
    ],
  }


def test_more_clients_win_whatever_the_name(tmp_path):
  runs = _write_pair(tmp_path, fish=-0.2)
  # Later, by time and by name; of FedAvg only.
  write_evaluation(
    runs[0], 'z', client_ids=tuple('abc'), losses={0.0: _plus(-2.0, _BASE[:3])}
  )
  findings = read_report(runs)
  [table] = tables.score_tables(findings).values()
  # The mean of 6.0 to 6.7.
  assert [row[1].text for row in table.rows] == ['6.350', '6.150']
  assert [c.num_clients for c in findings.comparisons] == [8]


def test_curves_of_other_samples_share_no_panel(tmp_path):
  runs = [
    write_run(
      tmp_path / method,
      algorithm=method,
      settings={'evaluation.num_clients': number},
    )
    for method, number in (('fed_avg', 16), ('fed_fish', 64))
  ]
  plots = figures_of_report.all_plots(read_report(runs))
  [plot] = [p for own in plots.values() for p in own if p.name == 'curves']
  assert list(plot.panel_names) == [
    *(f'Held-out loss (nats per token), sample {n}' for n in (1, 2)),
    *(f'Held-out token accuracy (%), sample {n}' for n in (1, 2)),
    'Train loss (nats per token)',
  ]


def test_fractions_stand_in_order_on_their_axis(tmp_path):
  runs = [
    write_scored(
      tmp_path / method,
      {fraction: _plus(-fraction) for fraction in fractions},
      algorithm=method,
    )
    for method, fractions in (
      ('fed_avg', (0.0, 0.5)),
      ('fed_fish', (0.0, 0.25)),
    )
  ]
  plots = figures_of_report.all_plots(read_report(runs))
  [plot] = [
    p for own in plots.values() for p in own if p.name == 'held_out_scores'
  ]
  ticks = [
    tick.get_text()
    for axes in plot._figure.axes
    for tick in axes.get_xticklabels()
  ]
  assert ticks == ['0', '25', '50']


@pytest.mark.parametrize(
  'settings, with_it, without_it',
  [
    (
      _DP,
      'clip_norm 1, noise_multiplier 2',
      'clip_norm 0, noise_multiplier 0',
    ),
    ({'aggregation.bits': 4}, '4 bits', '32 bits'),
  ],
)
def test_privacy_and_compression_are_settings_like_any(
  tmp_path, settings, with_it, without_it
):
  runs = [
    write_scored(
      tmp_path / f'{name}{seed}',
      _plus(gain),
      algorithm='fed_avg',
      seed=seed,
      settings=own,
    )
    for seed in range(3)
    for name, gain, own in (('with', 0.3, settings), ('without', 0.0, {}))
  ]
  [sentence] = headline.sentences(read_report(runs))
  assert sentence.startswith(
    f'The loss of FedAvg ({without_it}) is lower than that of FedAvg '
    f'({with_it}) by 0.300 nats per token on held-out clients '
  )
  assert '; 8 clients, 3 seeds;' in sentence


def _csv(findings):
  text = comparisons.comparisons_csv(findings.comparisons)
  return pd.read_csv(io.StringIO(text))


def test_cells_are_numbers_and_zero_has_no_sign(tmp_path):
  runs = _write_pair(tmp_path, fish=(-0.0001, -0.3), seeds=(0, 1))
  lines = _csv(read_report(runs))
  assert lines['difference_1'].tolist() == pytest.approx([-0.0001, 1e-6])
  assert lines['difference_2'].tolist() == pytest.approx([-0.3, 0.003])
  # The second seed alone leaves -0.0001, which rounds to 0.
  [[row]] = _tables(read_report([runs[0], runs[2]])).values()
  assert row[1] == '+0.000 | +0.000 to +0.000'
  assert tables.number_text(-1.5) == '−1.5'
