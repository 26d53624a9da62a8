"""Tables of the page and of the console."""

import re

import pytest
from report_runs import write_evaluation, write_run, write_sweep

from tff_fedfish.cli import demo
from tff_fedfish.reporting import loading, notes, scores, summary, tables


def _read(directories):
  return scores.read_scores(loading.load_runs(directories))


def _texts(table):
  """Returns the cells' texts, intervals in brackets, best values with '*'."""
  return [
    [
      cell.text
      + '*' * cell.is_best
      + f' [{cell.interval}]' * bool(cell.interval)
      for cell in row
    ]
    for row in table.rows
  ]


def test_comparison_tables_of_a_pair(pair):
  held_out, sotu = tables.comparison_tables(_read(pair))
  assert held_out.title == 'Method comparison on held-out clients'
  assert held_out.headings == [
    'Comparison',
    'Difference in loss (nats per token)',
    '95 % interval',
    'Clients × seeds',
    'Clients with lower loss',
    'Difference after personalization on 50 %',
    'Hurt by personalization on 50 %',
    'Uplink (models)',
  ]
  # -0.5, -0.5, 0, 0; then 0, -0.5, -1, 0.5. FedAvg hurts the third client.
  assert _texts(held_out) == [
    [
      *('FedFish − FedAvg', '−0.250', '−0.500 to +0.000', '4 × 1', '50 %'),
      *('−0.250 [−0.750 to +0.250]', '0 % / 25 %', '4 / 2'),
    ]
  ]
  # Both lose 0.5; the second of two clients is hurt by 0.1 in both.
  assert _texts(sotu)[0][3:7] == [
    *('2 × 1', '100 %', '−0.500 [−0.500 to −0.500]', '50 % / 50 %')
  ]


def test_two_seeds_have_differences_for_an_interval(tmp_path):
  gains = {('fed_avg', 4, 2): 1.0, ('fed_fish', 4, 2): 2.0}
  of_two = _read(write_sweep(tmp_path, gains, num_seeds=2))
  assert notes.notes(of_two)[-1].endswith(
    ' A comparison of two seeds has none: both differences are shown.'
  )
  [table] = tables.comparison_tables(of_two)
  assert _texts(table)[0][1:6] == [
    *('−1.000', 'by seed −1.000 and −1.000', '2 × 2', '100 %'),
    '−1.000 [by seed −1.000 and −1.000]',
  ]


def _write_methods(root, losses):
  """Writes FedAvg and FedFish with equal losses: E -> fraction -> loss."""
  runs = []
  for epochs, by_fraction in losses.items():
    for name in ('fed_avg', 'fed_fish'):
      path = root / f'{name}{epochs}'
      runs.append(write_run(path, algorithm=name, num_local_epochs=epochs))
      scored = {fraction: (loss,) * 4 for fraction, loss in by_fraction.items()}
      write_evaluation(runs[-1], 'e', losses=scored)
  return runs


def test_comparisons_of_settings_and_without_personalization(tmp_path):
  runs = _write_methods(tmp_path, {1: {0.0: 6.0}, 4: {0.0: 6.0}})
  [table] = tables.comparison_tables(_read(runs))
  assert table.headings[-2:] == ['Clients with lower loss', 'Uplink (models)']
  assert [row[0].text for row in table.rows] == [
    'FedFish − FedAvg\nE = 1',
    'FedFish − FedAvg\nE = 4',
  ]
  assert tables.cost_table(_read(runs)).title == 'Cost'
  # Alone with its setting, nothing is compared with it.
  assert tables.comparison_tables(_read(runs[:1] + runs[3:])) == []


def test_less_personalization_is_in_no_column_of_more(tmp_path):
  losses = {1: {0.0: 6.0, 0.5: 5.0}, 4: {0.0: 6.0, 0.25: 5.0}}
  [table] = tables.comparison_tables(_read(_write_methods(tmp_path, losses)))
  assert table.headings[5] == 'Difference after personalization on 50 %'
  assert [row[5].text for row in table.rows] == ['+0.000', '–']
  assert [row[6].text for row in table.rows] == ['0 % / 0 %', '–']


def test_rows_against_the_baseline_come_first(tmp_path):
  gains = {
    (name, epochs, 2): 1.0
    for name in ('fed_avg', 'fed_fish', 'fed_prox')
    for epochs in (1, 2)
  }
  [table] = tables.comparison_tables(
    _read(write_sweep(tmp_path, gains, num_seeds=2))
  )
  assert [row[0].text.split('\n')[0] for row in table.rows] == [
    *('FedFish − FedAvg', 'FedProx − FedAvg') * 2,
    *['FedProx − FedFish'] * 2,
  ]


def test_score_tables_of_a_pair(pair):
  held_out, sotu = tables.score_tables(_read(pair)).values()
  assert held_out.headings == [
    'Run',
    'Loss (nats per token), 0 %',
    'Loss (nats per token), 50 %',
    'Token accuracy (%), 0 %',
    'Token accuracy (%), 50 %',
    'Hurt, 50 %',
  ]
  # Means of (6, 7, 5, 6) and (5.5, 6.5, 5, 6); accuracies (10 - loss) %.
  assert [row[:2] + row[3:4] + row[5:] for row in _texts(held_out)] == [
    ['FedAvg, E = 8', '6.000 [5.750 to 6.250]', '4.0 [3.8 to 4.2]', '25 %'],
    ['FedFish, E = 8', '5.750* [5.500 to 6.000]', '4.2* [4.0 to 4.5]', '0 %'],
  ]
  assert sotu.title == 'Scores on clients of sotu_by_president'


def test_cost_and_training_of_a_pair(pair):
  table = _read(pair)
  assert tables.cost_table(table).headings == [
    *('Run', 'Barrier (nats)', 'Uplink (models)', 'Downlink (models)'),
    *('Seconds per round', 'Peak memory (GiB)'),
  ]
  assert tables.cost_table(table).title == 'Client-Server Barrier and cost'
  # Barriers (0.5 + 0.2) / 2 and (0.2 + 0.3) / 2; both take 30 s and 2 s.
  assert _texts(tables.cost_table(table)) == [
    ['FedAvg, E = 8', '+0.350 [+0.250 to +0.450]', '2', '2', '16.0', '2.00'],
    ['FedFish, E = 8', '+0.250 [+0.150 to +0.350]', '4', '2', '16.0', '2.00'],
  ]
  training = tables.training_table(table)
  assert training.headings == [
    *('Run', 'round', 'Train loss (nats per token)'),
    *('Held-out loss (nats per token)', 'Held-out token accuracy (%)'),
  ]
  assert _texts(training)[1] == ['FedFish, E = 8', '2', '7.000', '6.000', '2.0']


@pytest.mark.parametrize(
  'losses, is_best',
  [
    # Equal as shown is equal; a tie of all tells nothing apart.
    ((5.0, 5.0001, 6.0), [True, True, False]),
    ((5.0, 5.0001, 5.0), [False, False, False]),
  ],
)
def test_the_best_of_a_column(tmp_path, losses, is_best):
  runs = [write_run(tmp_path / str(number)) for number in range(3)]
  for run, loss in zip(runs, losses, strict=True):
    write_evaluation(run, 'e', losses={0.0: (loss,) * 4})
  [table] = tables.score_tables(_read(runs)).values()
  assert [row[1].is_best for row in table.rows] == is_best


def test_only_equal_evaluations_are_ranked(tmp_path):
  runs = [write_run(tmp_path / name) for name in ('a', 'b')]
  write_evaluation(runs[0], 'e')
  write_evaluation(
    runs[1],
    'e',
    losses={0.0: (5.0,) * 4, 0.5: (3.0,) * 4},
    personalization={'learning_rate': 1.0},
  )
  [table] = tables.score_tables(_read(runs)).values()
  # Fine-tuning counts above 0 only.
  assert [cell.is_best for cell in table.rows[1]][1:3] == [True, False]
  # Other clients are never ranked.
  other = write_run(tmp_path / 'c', settings={'seeds.split_seed': 9})
  write_evaluation(other, 'e', losses={0.0: (5.0,) * 4})
  [table] = tables.score_tables(_read([runs[0], other])).values()
  assert not any(cell.is_best for row in table.rows for cell in row)


def test_what_a_run_does_not_have_is_a_dash(tmp_path):
  runs = [write_run(tmp_path / name) for name in ('a', 'b')]
  write_evaluation(runs[0], 'e', losses={0.0: (6.0,) * 4})
  [table] = tables.score_tables(_read(runs)).values()
  assert _texts(table)[1] == ['FedFish, E = 1 (b)', '–', '–']


def test_runs_without_anything_to_show(tmp_path):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n')
  (directory / 'timings.csv').unlink()
  table = _read([directory])
  assert tables.score_tables(table) == {}
  assert tables.cost_table(table).headings == ['Run']
  assert tables.main_table(table.runs) == (['Run'], [['FedFish, E = 1']])


def test_own_test_rows_have_no_fraction(tmp_path):
  run = write_run(tmp_path / 'run', algorithm='local_only')
  write_evaluation(run, 'own', kind='own_test', losses={0.0: (3.0,) * 4})
  [table] = tables.score_tables(_read([run])).values()
  assert table.title == 'Scores on own test rows'
  assert table.headings[1:] == ['Loss (nats per token)', 'Token accuracy (%)']


def test_columns_of_methods_and_images(tmp_path):
  run = write_run(
    tmp_path / 'run',
    settings={
      'data.corpus': 'cifar10',
      'partition.scheme': 'fixed_classes',
      'partition.num_clients': 10,
      'partition.classes_per_client': 2,
      'algorithm.fisher_estimator': 'extra_pass',
    },
  )
  write_evaluation(run, 'e', losses={0.0: (3.0,) * 4})
  header, *rows = (run / 'metrics.csv').read_text().splitlines()
  name = 'train/fisher_seconds_are_no_column'
  lines = [f'{header},{name}', *(f'{row},1' for row in rows)]
  (run / 'metrics.csv').write_text('\n'.join(lines) + '\n')
  table = _read([run])
  [own] = tables.score_tables(table).values()
  assert own.headings[1:] == ['Loss (nats per image), 0 %', 'Accuracy (%), 0 %']
  # Only columns that a method declares.
  keys = [c.key for c in summary.find_columns(table.arms, table.means)]
  assert name not in keys


def test_console_table(pair):
  runs = loading.load_runs(pair)
  headers, rows = tables.main_table(runs)
  assert headers[:4] == [
    'Run',
    'Held-out\nLoss\n0 %',
    'Held-out\nLoss\n50 %',
    'Held-out\naccuracy\n0 %',
  ]
  assert headers[-3:] == ['Barrier\nloss', 'Uplink', 'Seconds per round']
  assert rows[0][:2] == ['FedAvg, E = 8', '6.000']
  assert rows[1][:2] == ['FedFish, E = 8', '5.750 *']
  assert {len(row) for row in rows} == {len(headers)}
  assert tables.main_table(runs, measures=('barrier',)) == (
    ['Run', 'Barrier\nloss'],
    [['FedAvg, E = 8', '+0.350'], ['FedFish, E = 8', '+0.250']],
  )


def test_the_console_names_each_of_several_transfer_corpora(tmp_path):
  run = write_run(tmp_path / 'run')
  for corpus in ('plays', 'speeches'):
    write_evaluation(
      run, corpus, kind='transfer', corpus=corpus, losses={0.0: (5.0,) * 4}
    )
  headers, _ = tables.main_table(loading.load_runs([run]), measures=('loss',))
  assert headers == [
    'Run',
    'Transfer\nplays\nLoss\n0 %',
    'Transfer\nspeeches\nLoss\n0 %',
  ]


@pytest.mark.parametrize('width', [120, 80, 60])
def test_the_demos_table_shows_every_digit(pair, width, capsys, monkeypatch):
  for name, value in (('COLUMNS', str(width)), ('FORCE_COLOR', '1')):
    monkeypatch.setenv(name, value)
  monkeypatch.setenv('TERM', 'xterm')
  demo.print_results(list(map(str, pair)))
  text = re.sub(r'\x1b\[[0-9;]*m', '', capsys.readouterr().out)
  assert max(map(len, text.splitlines())) <= width
  assert '…' not in text
  _, rows = tables.main_table(
    loading.load_runs(pair), measures=('loss', 'barrier', 'cost')
  )
  for row in rows:
    assert all(cell in text for cell in row[1:])
