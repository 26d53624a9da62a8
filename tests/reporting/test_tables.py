"""Tables of the page and of the console."""

import re

import pytest
from report_runs import (
  read_report,
  write_evaluation,
  write_methods,
  write_run,
  write_scored,
)

from tff_fedfish.cli import demo
from tff_fedfish.reporting import comparison_tables, loading, tables


def _texts(table):
  """Returns the cells' texts, intervals in brackets, best values with '*'."""
  return [
    [cell.text + f' [{cell.interval}]' * bool(cell.interval) for cell in row]
    for row in table.rows
  ]


def test_comparison_tables_of_a_pair(pair):
  found = comparison_tables.comparison_tables(read_report(pair))
  held_out, sotu, equal_bytes = found
  assert held_out.title == 'Same settings: held-out clients'
  assert held_out.headings == [
    *('Comparison', 'Difference in loss (nats per token)'),
    'Difference in token accuracy (points)',
    *('Clients × seeds', 'Clients with lower loss by the first'),
    *('Loss after personalization', 'Hurt (first / second)', 'Uplink (models)'),
  ]
  # -0.5, -0.5, 0, 0; then 0, -0.5, -1, 0.5. FedAvg hurts the third client. For
  # the intervals see test_a_pair.
  assert _texts(held_out) == [
    [
      *('FedFish − FedAvg', '−0.250 [−0.719 to +0.219]'),
      *('+0.25 [−0.22 to +0.72]', '4 × 1', '50 %'),
      '−0.250 [−1.187 to +0.687; 50 %, 4 × 1]',
      *('0 % / 25 %', '4 / 2'),
    ]
  ]
  assert sotu.title == 'Same settings: clients of sotu_by_president'
  # 6.333 after 4 of 6 models, and 6.5; accuracies 1 1/3 % and 2 %.
  row = ['FedFish − FedAvg', '4', '−0.167', '−0.67', '1']
  assert _texts(equal_bytes) == [row]


def test_each_comparison_has_its_own_personalization(tmp_path):
  runs = []
  for epochs, fraction in ((1, 0.5), (4, 0.25), (8, 0.0)):
    losses = [{0.0: (6.0,), fraction: (5.0,)}]
    both = dict.fromkeys(('fed_avg', 'fed_fish', 'fed_prox'), losses)
    options = {'all': {'num_local_epochs': epochs}}
    runs += write_methods(tmp_path / str(epochs), both, **options)
  table, *_ = comparison_tables.comparison_tables(read_report(runs))
  rows = [[row[0], *row[5:7]] for row in _texts(table)]
  assert rows[:6:2] == [
    ['FedFish − FedAvg\nE = 1', '+0.000 [50 %, 1 × 1]', '0 % / 0 %'],
    ['FedFish − FedAvg\nE = 4', '+0.000 [25 %, 1 × 1]', '0 % / 0 %'],
    ['FedFish − FedAvg\nE = 8', '–', '–'],
  ]
  # Rows against the baseline come first.
  assert ['− FedAvg' in row[0] for row in rows] == [True] * 6 + [False] * 3


def test_score_and_cost_tables_of_a_pair(pair):
  findings = read_report(pair)
  held_out, sotu = tables.score_tables(findings).values()
  assert sotu.title == 'Scores on clients of sotu_by_president'
  assert held_out.headings == [
    *('Run', 'Loss (nats per token), 0 %', 'Loss (nats per token), 50 %'),
    *('Token accuracy (%), 0 %', 'Token accuracy (%), 50 %', 'Hurt, 50 %'),
  ]
  # Means of (6, 7, 5, 6) and (5.5, 6.5, 5, 6); accuracies (10 - loss) %.
  assert [
    [cell.text for cell in row[:2] + row[3:4] + row[5:]]
    for row in held_out.rows
  ] == [
    ['FedAvg, E = 8', '6.000', '4.00', '25 %'],
    ['FedFish, E = 8', '5.750', '4.25', '0 %'],
  ]
  cost = tables.cost_table(findings)
  assert cost.title == 'Client-Server Barrier and cost'
  assert cost.headings == [
    *('Run', 'Barrier (nats)', 'Uplink (models)', 'Downlink (models)'),
    *('Seconds per round', 'Peak memory (GiB)'),
  ]
  # Barriers (0.5 + 0.2) / 2 and (0.2 + 0.3) / 2, with the scale of two clients,
  # 9.1680: -/+ 0.15 and 0.05 become 1.3752 and 0.4584. Both take 30 s and 2 s.
  assert _texts(cost) == [
    ['FedAvg, E = 8', '+0.350 [−1.025 to 1.725]', '2', '2', '16.0', '2.00'],
    ['FedFish, E = 8', '+0.250 [−0.208 to 0.708]', '4', '2', '16.0', '2.00'],
  ]
  training = tables.training_table(findings)
  row = ['FedFish, E = 8', '2', '7.000', '6.000', '2.00']
  assert _texts(training)[1] == row


def test_what_a_run_does_not_have(tmp_path):
  directory = write_run(tmp_path / 'run')
  runs = [write_scored(tmp_path / 'other', 6.0), directory]
  [table] = tables.score_tables(read_report(runs)).values()
  assert _texts(table)[1] == ['FedFish, E = 1 (run)', '–', '–']
  (directory / 'metrics.csv').write_text('round\n')
  (directory / 'timings.csv').unlink()
  findings = read_report([directory])
  assert tables.score_tables(findings) == {}
  assert tables.cost_table(findings).headings == ['Run']
  assert tables.main_table(findings.runs) == (['Run'], [['FedFish, E = 1']])


def test_console_table(pair, tmp_path):
  runs = loading.load_runs(pair)
  headers, rows = tables.main_table(runs)
  assert headers[:4] == [
    *('Run', 'Held-out\nLoss\n0 %', 'Held-out\nLoss\n50 %'),
    'Held-out\naccuracy\n0 %',
  ]
  assert headers[-3:] == ['Barrier\nloss', 'Uplink', 'Seconds per round']
  assert rows[1][:2] == ['FedFish, E = 8', '5.750']
  assert {len(row) for row in rows} == {len(headers)}
  assert tables.main_table(runs, measures=('barrier',)) == (
    ['Run', 'Barrier\nloss'],
    [['FedAvg, E = 8', '+0.350'], ['FedFish, E = 8', '+0.250']],
  )
  # Of several corpora each is named.
  run = write_run(tmp_path / 'run')
  for name in ('plays', 'speeches'):
    losses = {0.0: (5.0,) * 4}
    write_evaluation(run, name, kind='transfer', corpus=name, losses=losses)
  headers, _ = tables.main_table(loading.load_runs([run]), measures=('loss',))
  assert headers[1:] == [
    f'Transfer\n{name}\nLoss\n0 %' for name in ('plays', 'speeches')
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
