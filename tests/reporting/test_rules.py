"""The rules of a page: true sentences, or refusals."""

import csv
import io
import json
import shutil

import pandas as pd
import pytest
from report_runs import (
  add_metrics,
  read_report,
  write_evaluation,
  write_methods,
  write_scored,
)

from tff_fedfish.printing import count
from tff_fedfish.reporting import (
  comparison_tables,
  comparisons,
  figures_of_report,
  headline,
  notes,
  summary,
  tables,
)
from tff_fedfish.reporting.loading import load_runs

_BASE = tuple(6.0 + n / 10 for n in range(8))
_NAN = float('nan')


def _plus(gain, losses=_BASE):
  return tuple(loss + gain for loss in losses)


def _write_pair(root, *gains, **options):
  """Writes FedAvg with `_BASE`, and FedFish with a gain for each seed."""
  losses = {'fed_avg': [_BASE] * len(gains), 'fed_fish': map(_plus, gains)}
  return write_methods(root, losses, **options)


def _tables(findings):
  """Returns the tables of comparisons, by title: the texts of their rows."""
  return {
    table.title: [
      [f'{cell.text} | {cell.interval}'.rstrip(' |') for cell in row]
      for row in table.rows
    ]
    for table in comparison_tables.comparison_tables(findings)
  }


def _csv(findings):
  text = comparisons.comparisons_csv(findings.comparisons)
  return pd.read_csv(io.StringIO(text))


def test_everything_that_differs_is_named(tmp_path):
  private = {'local_privacy.clip_norm': 1, 'local_privacy.noise_multiplier': 2}
  runs = _write_pair(
    *(tmp_path, -0.3),
    fed_fish={
      'settings': {'client_work.optimizer': 'adamw', 'aggregation.bits': 4}
    },
    fed_avg={'settings': {'server.optimizer': 'sgd'} | private},
  )
  [sentence] = headline.sentences(read_report(runs))
  assert sentence.startswith(
    'One seed, not a finding: the loss of FedFish (AdamW 0.05, clip_norm 0, '
    'noise_multiplier 0, server Adam 0.001, 4 bits) was lower than that of '
    'FedAvg (SGD 0.05, clip_norm 1, noise_multiplier 2, server SGD 0.001, '
    '32 bits) by 0.300 nats per token on held-out clients (95 % interval over '
    'clients 0.300 to 0.300), '
  )


def test_clients_that_are_not_finite_on_one_side_end_the_comparison(tmp_path):
  tuned = tuple(loss - 0.8 if n >= 5 else _NAN for n, loss in enumerate(_BASE))
  findings = read_report(
    write_methods(
      tmp_path,
      {
        'fed_avg': [{0.0: _BASE, 0.5: _plus(-0.5)}],
        'fed_fish': [{0.0: _BASE, 0.5: tuned}],
      },
    )
  )
  assert headline.sentences(findings)[1] == (
    'After personalization on 50 % of each client’s data there is no verdict: '
    '3 of 8 clients of FedFish finite. It hurts 62 % of the clients with '
    'FedFish and 0 % of the clients with FedAvg.'
  )
  reason = '3 of 8 clients of FedFish finite'
  [[row]] = _tables(findings).values()
  assert row[5:7] == [f'{reason} | 50 %, 3 × 1', '62 % / 0 %']
  [table] = tables.score_tables(findings).values()
  assert table.rows[1][2].text == '3 of 8 clients finite'
  lines = _csv(findings)
  assert lines['problem'].fillna('').tolist() == ['', '', reason, reason]
  assert lines['mean'].isna().tolist() == [False, False, True, True]


@pytest.mark.parametrize('on_both_sides', [False, True])
def test_seeds_that_diverged(tmp_path, on_both_sides):
  settings = {'settings': {'training.max_non_finite_rounds': 1}}
  # Each side's share is of its own seeds.
  losses = {'fed_avg': [_BASE] * 6, 'fed_fish': [_plus(-0.3)] * 5}
  curves = {'fed_fish': settings | {'units_per_round': 2}, 'fed_avg': settings}
  runs = write_methods(tmp_path, losses, **curves)
  for run in runs:
    is_side = on_both_sides or run.name.startswith('fed_fish')
    diverged = int(is_side and run.name[-1] in '34')
    add_metrics(run, train__update_is_non_finite=(0, 0, diverged))
  findings = read_report(runs)
  sentence, *more = headline.sentences(findings)
  [row] = findings.at_equal_bytes
  if on_both_sides:
    assert (row.problem, row.num_seeds, len(more)) == ('', 3, 1)
    assert '; 8 clients, 3 seeds; ' in sentence
    return
  reason = '2 of 5 seeds of FedFish diverged'
  assert sentence == (
    f'No verdict on FedFish against FedAvg on held-out clients: {reason}.'
  )
  assert (row.problem, more) == (reason, [])
  for [cells] in _tables(findings).values():
    assert reason in cells[1:3] and reason in cells[2:4]
  assert findings.arms[1].label == 'FedFish, E = 1 (2 of 5 diverged)'
  [table] = tables.score_tables(findings).values()
  assert table.rows[1][1].text == '2 of 5 seeds diverged'


@pytest.mark.parametrize(
  'gains, start, loss, accuracy',
  [
    (
      *((-0.3,), 'One seed, not a finding: the loss of FedFish was'),
      '0.300/95 % interval over clients 0.300 to 0.300',
      '0.30/95 % interval over clients 0.30 to 0.30',
    ),
    (
      *((-0.2, -0.3), 'Two seeds, not a finding: the loss of FedFish was'),
      *('0.250/by seed 0.200 and 0.300', '0.25/by seed 0.20 and 0.30'),
    ),
    # Standard deviation 0.01: 0.19 -/+ 4.3027 * 0.01 / sqrt(3) = 0.0248.
    (
      *((-0.20, -0.19, -0.18), 'The loss of FedFish is'),
      *(
        '0.190/95 % interval 0.165 to 0.215',
        '0.19/95 % interval 0.17 to 0.21',
      ),
    ),
    # Standard deviation 0.1: 0.2 -/+ 0.2484.
    (
      *((-0.3, -0.2, -0.1), 'Undecided: the loss of FedFish was'),
      '0.200/95 % interval −0.048 to 0.448, undecided',
      '0.20/95 % interval −0.05 to 0.45, undecided',
    ),
  ],
)
def test_a_verdict_needs_three_seeds(tmp_path, gains, start, loss, accuracy):
  findings = read_report(_write_pair(tmp_path, *gains))
  (loss, ends), (accuracy, their_ends) = loss.split('/'), accuracy.split('/')
  assert headline.sentences(findings) == [
    f'{start} lower than that of FedAvg by {loss} nats per token on held-out '
    f'clients ({ends}), its accuracy higher by {accuracy} points '
    f'({their_ends}); 8 clients, {count(len(gains), "seed")}; uplink 2 models.'
  ]
  few = (
    'Fewer than three seeds are not a finding: other seeds may rank the runs '
    'differently. three_seeds.sh, beside this page, has commands for more.'
  )
  over = 'Intervals of one seed are over its clients.'
  assert notes.notes(findings) == [few, over][: max(0, 3 - len(gains))]


def test_loss_and_accuracy_that_point_apart(tmp_path):
  runs = _write_pair(tmp_path, -0.3)
  path = runs[1] / 'evaluations' / 'e' / 'per_client.csv'
  table = pd.read_csv(path)
  table['accuracy_after'] -= 0.02
  table.to_csv(path, index=False)
  [sentence] = headline.sentences(read_report(runs))
  assert sentence.startswith(
    'Loss and accuracy point apart; one seed, not a finding: the loss of '
    'FedFish was lower '
  )
  # 0.3 points more, and 2 less.
  assert ', its accuracy lower by 1.70 points (95 %' in sentence


def _write_rates(root):
  """Writes three seeds at two rates of the client."""
  runs = []
  for rate, average, fish in ((0.1, 0.5, -0.05), (0.01, 0.0, 0.2)):
    losses = {'fed_avg': [_plus(average)] * 3, 'fed_fish': [_plus(fish)] * 3}
    settings = {'settings': {'client_work.learning_rate': rate}}
    runs += write_methods(root / str(rate), losses, all=settings)
  return runs


def test_a_choice_on_the_scored_clients_has_no_interval(tmp_path):
  findings = read_report(_write_rates(tmp_path))
  assert headline.sentences(findings) == [
    'The best of 2 against the best of 2, chosen on these clients, so without '
    'an interval: the loss of FedFish (client rate 0.1, best of 2) was lower '
    'than that of FedAvg (client rate 0.01, best of 2) by 0.050 nats per token '
    'on held-out clients, its accuracy higher by 0.05 points; 8 clients, '
    '3 seeds; uplink 2 models.',
    'Of 2 comparisons with FedAvg at the same settings: FedFish has the lower '
    'loss in 1, FedAvg has the lower loss in 1.',
  ]
  same, best = _tables(findings).items()
  assert same[0] == 'Same settings: held-out clients'
  assert [row[1] for row in same[1]] == [
    *('−0.550 | −0.550 to −0.550', '+0.200 | +0.200 to +0.200')
  ]
  assert best[0] == (
    'Each at its best: held-out clients, chosen on held-out clients'
  )
  assert best[1][0][1:3] == ['−0.050 | no interval', '+0.05 | no interval']
  [note] = notes.notes(findings)
  assert note.startswith('The best of several trials, chosen on the clients ')


def test_a_choice_on_validation_clients_keeps_the_interval(tmp_path):
  runs = _write_rates(tmp_path)
  for run in runs:
    loss = 6.0 if run.parent.name == '0.1' else 7.0
    add_metrics(run, validation__loss=(9.0, 8.0, loss))
  assert headline.sentences(read_report(runs))[0].startswith(
    'The loss of FedFish (client rate 0.1, best of 2 on validation clients) is '
    'lower than that of FedAvg (client rate 0.1, best of 2 on validation '
    'clients) by 0.550 nats per token on held-out clients (95 % interval 0.550 '
    'to 0.550), '
  )


def test_three_questions_have_three_tables(tmp_path):
  runs = _write_pair(tmp_path, -0.1, fed_fish={'units_per_round': 2})
  epochs = {'all': {'num_local_epochs': 4}}
  runs += write_methods(tmp_path / '4', {'fed_avg': [_plus(-0.2)]}, **epochs)
  best = 'FedFish (E = 1) − FedAvg (E = 4, best of 2)'
  assert {
    title: [row[0] for row in rows]
    for title, rows in _tables(read_report(runs)).items()
  } == {
    'Same settings: held-out clients': ['FedFish − FedAvg'],
    'Each at its best: held-out clients, chosen on held-out clients': [best],
    'At equal bytes: held-out clients scored while training': [
      *('FedFish − FedAvg', best)
    ],
  }


def test_more_clients_win_whatever_the_name(tmp_path):
  runs = _write_pair(tmp_path, -0.2)
  # Later, by time and by name; of FedAvg only.
  losses = {0.0: _plus(-2.0, _BASE[:3])}
  write_evaluation(runs[0], 'z', client_ids=tuple('abc'), losses=losses)
  findings = read_report(runs)
  [table] = tables.score_tables(findings).values()
  # The mean of 6.0 to 6.7.
  assert [row[1].text for row in table.rows] == ['6.350', '6.150']
  assert [c.num_clients for c in findings.comparisons] == [8]


def test_fractions_stand_in_order_on_their_axis(tmp_path):
  losses = {fraction: _BASE for fraction in (0.0, 0.5, 0.25)}
  halves = {fraction: _BASE for fraction in (0.0, 0.5)}
  runs = write_methods(tmp_path, {'fed_avg': [halves], 'fed_fish': [losses]})
  plots = figures_of_report.all_plots(read_report(runs)).values()
  plots = {plot.name: plot for of_place in plots for plot in of_place}
  axes = plots['held_out_scores']._figure.axes
  ticks = [tick.get_text() for a in axes for tick in a.get_xticklabels()]
  assert ticks == ['0', '25', '50']


def test_cells_are_numbers_and_zero_has_no_sign(tmp_path):
  runs = _write_pair(tmp_path, -0.0001, -0.3)
  lines = _csv(read_report(runs))
  assert lines['difference_1'].tolist() == pytest.approx([-0.0001, 1e-6])
  assert lines['difference_2'].tolist() == pytest.approx([-0.3, 0.003])
  [[row]] = _tables(read_report([runs[0], runs[2]])).values()
  assert row[1] == '+0.000 | +0.000 to +0.000'


def test_own_rows_of_other_clients_have_panels_of_their_own(tmp_path):
  few, many = (5.0, 5.1), (6.0, 6.0, 3.0, 2.0)
  losses = {'local_only': [few] * 3, 'fed_fomo': [many] * 3}
  own = {'all': {'evaluation': {'kind': 'own_test'}}}
  findings = read_report(write_methods(tmp_path, losses, **own))
  plots = figures_of_report.all_plots(findings)['own-tests']
  assert len(plots[0].panel_names) == 4


def test_a_best_checkpoint_has_no_interval(tmp_path):
  best = {'round': 2, 'best_of_rounds': 9, 'chosen_on': 'held_out_clients'}
  chosen = {'evaluation': {'facts': {'checkpoint': best}}}
  findings = read_report(_write_pair(tmp_path, *[-0.2] * 3, fed_fish=chosen))
  [table] = tables.score_tables(findings).values()
  assert [bool(row[1].interval) for row in table.rows] == [True, False]


def test_best_rounds_that_differ_by_seed(tmp_path):
  runs = _write_pair(tmp_path, *[-0.2] * 3)
  for run, round_num in zip(runs[3:], (0, 1, 2), strict=True):
    path = run / 'evaluations' / 'e' / 'summary.json'
    values = json.loads(path.read_text())
    values['checkpoint'] = {
      **{'round': round_num, 'best_of_rounds': 3},
      'chosen_on': 'held_out_clients',
    }
    path.write_text(json.dumps(values))
  findings = read_report(runs)
  [lead] = headline.sentences(findings)
  # Uplinks 0, 1 and 2 models of the best rounds, and 2 of the last one.
  assert 'FedFish (best of 3, rounds 0 to 2)' in lead
  assert ' after rounds 0 to 2 and round 2' in lead
  assert lead.endswith('; uplink 1 against 2 models.')
  [table] = comparison_tables.comparison_tables(findings)
  assert table.rows[0][-1].text == '1 / 2'


def test_scores_of_the_last_round_come_before_those_of_best_ones(tmp_path):
  runs = []
  for epochs in (1, 4):
    losses = {'fed_fish': [6.0] * 3}
    options = {'all': {'num_local_epochs': epochs}}
    runs += write_methods(tmp_path / str(epochs), losses, **options)
  for run, round_num in zip(runs, (1, 2, 2) * 2, strict=True):
    best = {'round': round_num, 'best_of_rounds': 3}
    facts = {'checkpoint': best | {'chosen_on': 'held_out_clients'}}
    options = {'client_ids': ('a', 'b'), 'losses': {0.0: (5.0,) * 2}}
    write_evaluation(run, 'later', facts=facts, **options)
  findings = read_report(runs)
  [table] = tables.score_tables(findings).values()
  assert [row[1].text for row in table.rows] == ['6.000'] * 2
  loss, _ = figures_of_report.all_plots(findings)['local-epochs']
  assert 'after the last round' in loss.caption
  assert set(loss.table['y']) == {6.0}
  # Nothing stands for the last round where best rounds alone were scored.
  for run in runs:
    shutil.rmtree(run / 'evaluations' / 'e')
  findings = read_report(runs)
  [table] = tables.score_tables(findings).values()
  assert [row[1].text for row in table.rows] == ['5.000'] * 2
  assert figures_of_report.all_plots(findings)['local-epochs'] == []


def test_last_values_that_are_not_finite(tmp_path):
  curves = ((8.0, 7.0, 6.0), (8.0, 7.0, float('nan')))
  runs = [
    write_scored(tmp_path / str(n), 6.0, seed=n, held_out_losses=curve)
    for n, curve in enumerate(curves)
  ]
  lines = csv.DictReader(io.StringIO(summary.summary_csv(load_runs(runs))))
  assert [line['held_out/loss'] for line in lines] == ['6.0', '']
  # Nor is there a mean over both seeds.
  headings = tables.training_table(read_report(runs)).headings
  assert 'Held-out loss (nats per token)' not in headings


def test_a_title_names_the_personalization(tmp_path):
  losses = dict.fromkeys(('fed_avg', 'fed_fish'), [{0.5: _BASE}])
  losses['fed_prox'] = [{0.5: _BASE}] * 3
  losses['fed_avg'] = losses['fed_avg'] * 3
  findings = read_report(write_methods(tmp_path, losses))
  title = 'Same settings: held-out clients, personalized on 50 %'
  assert list(_tables(findings)) == [title]
  [plot] = figures_of_report.all_plots(findings)['answer']
  assert 'held-out clients, personalized on 50 %. ' in plot.caption
  assert plot.caption.endswith('seeds and clients, of one seed over clients.')


def test_models_of_two_sizes_are_no_unit_of_traffic(tmp_path):
  wide = {'settings': {'model.width': 256}, 'units_per_round': 2}
  findings = read_report(_write_pair(tmp_path, *[-0.2] * 3, fed_fish=wide))
  assert findings.comparisons
  assert not findings.at_equal_bytes
  cost = figures_of_report.all_plots(findings)['curves'][1]
  assert len(cost.panel_names) == 4
