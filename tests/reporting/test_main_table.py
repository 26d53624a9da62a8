"""The main table by hand-computed numbers."""

import csv
import dataclasses
import io
import re

import pytest

from tff_fedfish.cli import demo
from tff_fedfish.reporting import loading, tables, targets


def _column(table, key):
  [column] = [column for column in table if column.key == key]
  return column.cells


def test_values_intervals_and_best_marks(pair):
  table = tables.build_main_table(loading.load_runs(pair))
  # Means of (6, 7, 5, 6) and (5.5, 6.5, 5, 6), -/+ 0.25.
  losses = _column(table, 'held_out/loss/0')
  assert [cell.text for cell in losses] == ['6.000', '5.750']
  assert losses[1].interval_text == '5.500 to 6.000'
  assert [cell.is_best for cell in losses] == [False, True]
  # Accuracies (10 - 6) / 100 and (10 - 5.75) / 100: higher is better.
  accuracies = _column(table, 'held_out/accuracy/0')
  assert [cell.text for cell in accuracies] == ['4.0', '4.2']
  assert [cell.is_best for cell in accuracies] == [False, True]
  # Transfer at 25 %: (6.5 + 7.6) / 2 and (6 + 7.1) / 2.
  transfer = _column(table, 'transfer/sotu_by_president/loss/0.25')
  assert [cell.text for cell in transfer] == ['7.050', '6.550']
  # Barriers (0.5 + 0.2) / 2 and (0.2 + 0.3) / 2.
  assert [c.text for c in _column(table, 'barrier/loss')] == [
    '+0.350',
    '+0.250',
  ]
  # Errors (0.10 - 0.01) / 2 and (0.05 + 0) / 2, in points.
  assert [c.text for c in _column(table, 'barrier/error')] == ['+4.50', '+2.50']
  # 2 rounds of 1 and 2 units: fewer are better, so FedAvg is marked.
  uplink = _column(table, 'communication/uplink_units')
  assert [cell.text for cell in uplink] == ['2', '4']
  assert [cell.is_best for cell in uplink] == [True, False]


def test_effective_clients_are_not_ranked(
  tmp_path, write_run, write_evaluation
):
  runs = []
  for name, effective in (('a', 7.75), ('b', 2.71), ('c', None)):
    runs.append(write_run(tmp_path / name))
    write_evaluation(
      runs[-1],
      'e',
      barriers=((4.0, 4.5, 0.2, 0.1),),
      effective_clients=effective,
    )
  table = tables.build_main_table(loading.load_runs(runs))
  cells = _column(table, 'effective_clients')
  assert [cell.text for cell in cells] == ['7.8', '2.7', '–']
  assert not any(cell.is_best for cell in cells)


def test_unknown_tokens(tmp_path, write_run, write_evaluation):
  runs = []
  # The last is a summary of before, without any.
  for name, fraction in (('a', 0.0125), ('b', 0.437), ('c', None)):
    runs.append(write_run(tmp_path / name))
    facts = {} if fraction is None else {'unknown_token_fraction': fraction}
    write_evaluation(runs[-1], 'e', facts=facts)
    write_evaluation(runs[-1], 't', kind='transfer', corpus='sotu', facts=facts)
  table = tables.build_main_table(loading.load_runs(runs))
  for panel in ('held_out', 'transfer/sotu'):
    cells = _column(table, f'{panel}/unknown_tokens')
    assert [cell.text for cell in cells] == ['1.2', '43.7', '–']
    assert not any(cell.is_best for cell in cells)
  old = tables.build_main_table(loading.load_runs(runs[2:]))
  assert not any('unknown' in column.key for column in old)


def test_cost_of_a_target_loss_by_hand(tmp_path, write_run):
  runs = [
    write_run(tmp_path / 'a', held_out_losses=(8.0, 7.0, 6.5, 6.0)),
    write_run(tmp_path / 'b', held_out_losses=(8.0, 6.9, 6.8, 6.75)),
  ]
  runs = loading.load_runs(runs)
  # The higher of 6 and 6.75.
  assert list(targets.target_losses(runs).values()) == [6.75]
  table = tables.build_main_table(runs)
  rounds = _column(table, 'to_target/rounds')
  assert [(cell.text, cell.is_best) for cell in rounds] == [
    ('2', True),
    ('3', False),
  ]
  found = targets.cost_of_target(runs[0], 7.5)
  assert found['rounds'] == 1
  assert targets.cost_of_target(runs[0], 1.0) == {}
  measured = dataclasses.replace(
    runs[0],
    metrics=(
      {'round': 0, 'held_out/loss': 9.0, 'communication/total_bytes': 0},
      {
        'round': 1,
        'train/num_tokens': 100,
        'held_out/loss': None,
        'communication/total_bytes': 50,
      },
      {
        'round': 2,
        'train/num_tokens': 150,
        'held_out/loss': 5.0,
        'communication/total_bytes': 100,
      },
    ),
  )
  assert targets.cost_of_target(measured, 5.0) == {
    'rounds': 2,
    'tokens': 250,
    'bytes': 100,
  }
  # 100 + 150 tokens in all.
  table = tables.build_main_table([measured])
  assert [cell.value.mean for cell in _column(table, 'tokens_seen')] == [250]
  # One run has nobody to be compared with.
  assert not targets.target_losses(runs[:1])


def test_targets_and_best_losses_are_of_one_corpus_each(tmp_path, write_run):
  def run(name, loss, directory):
    return write_run(
      tmp_path / name,
      held_out_losses=(8.0, loss),
      settings={'data.directory': directory},
    )

  runs = loading.load_runs(
    [
      run('a', 6.0, 'corpora/debian'),
      run('b', 6.5, 'corpora/debian'),
      run('c', 7.0, 'corpora/news'),
      run('d', 7.5, 'corpora/news'),
    ]
  )
  assert list(targets.target_losses(runs).values()) == [6.5, 7.5]
  cells = _column(tables.build_main_table(runs), 'held_out/loss')
  assert [cell.is_best for cell in cells] == [True, False, True, False]


def test_spread_over_clients_by_hand(tmp_path, write_run, write_evaluation):
  ids = tuple(f'{n}.org' for n in range(11))
  run = write_run(tmp_path / 'run')
  losses = {
    0.0: tuple(float(n) for n in range(11)),
    # Clients 0 to 2 are hurt.
    0.5: (1.0, 2.0, 3.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
  }
  write_evaluation(run, 'e', losses=losses, client_ids=ids)
  table = tables.build_main_table(loading.load_runs([run]))

  def texts(fraction):
    return [
      _column(table, f'held_out/spread/{fraction}/{name}')[0].text
      for name in ('p10', 'p50', 'p90', 'worst')
    ]

  # The two highest of eleven: (9 + 10) / 2.
  assert texts('0') == ['1.000', '5.000', '9.000', '9.500']
  # Sorted: 1 2 2 3 3 4 5 6 7 8 9.
  assert texts('0.5') == ['2.000', '4.000', '8.000', '8.500']
  hurt = _column(table, 'held_out/spread/0.5/hurt')
  assert hurt[0].text == '27'  # 3 / 11.
  keys = [column.key for column in table]
  assert 'held_out/spread/0/hurt' not in keys


def test_bits_per_byte(tmp_path, write_run, write_evaluation):
  runs = [write_run(tmp_path / 'a'), write_run(tmp_path / 'b')]
  entry = {
    'fraction': 0.0,
    'loss': {'mean': 6.0},
    'accuracy': {'mean': 0.1},
    'bits_per_byte': 1.25,
  }
  write_evaluation(runs[0], 'e', facts={'fractions': [entry]})
  # Of before.
  write_evaluation(runs[1], 'e')
  table = tables.build_main_table(loading.load_runs(runs))
  cells = _column(table, 'held_out/bits_per_byte/0')
  assert [cell.text for cell in cells] == ['1.250', '–']


def test_columns_that_are_equal_as_shown_have_no_best(pair):
  table = tables.build_main_table(loading.load_runs(pair))
  # Both take 30 s and 2 s: median 16 s.
  seconds = _column(table, 'seconds_per_round')
  assert [cell.text for cell in seconds] == ['16.0', '16.0']
  assert not any(cell.is_best for cell in seconds)


def test_a_tie_of_some_marks_each(tmp_path, write_run, write_evaluation):
  runs = []
  for name, loss in (('a', 5.0), ('b', 5.0001), ('c', 6.0)):
    runs.append(write_run(tmp_path / name))
    write_evaluation(runs[-1], 'e', losses={0.0: (loss,) * 4})
  table = tables.build_main_table(loading.load_runs(runs))
  cells = _column(table, 'held_out/loss/0')
  assert [cell.is_best for cell in cells] == [True, True, False]


def test_fewer_rounds_are_not_a_saving(tmp_path, write_run):
  runs = [
    write_run(tmp_path / 'short', held_out_losses=(8.0, 7.0)),
    write_run(tmp_path / 'long', held_out_losses=(8.0, 7.0, 6.0)),
  ]
  table = tables.build_main_table(loading.load_runs(runs))
  uplink = _column(table, 'communication/uplink_units')
  assert [cell.text for cell in uplink] == ['1', '2']
  assert not any(cell.is_best for cell in uplink)


def test_missing_values_are_dashes_and_absent_columns_absent(
  tmp_path, write_run, write_evaluation
):
  runs = [write_run(tmp_path / 'a'), write_run(tmp_path / 'b')]
  write_evaluation(runs[0], 'e')
  table = tables.build_main_table(loading.load_runs(runs))
  cells = _column(table, 'held_out/loss/0.5')
  # (5 + 6.5 + 5.5 + 4) / 4 = 5.25; one value alone is no best.
  assert [(cell.text, cell.is_best) for cell in cells] == [
    ('5.250', False),
    ('–', False),
  ]
  keys = [column.key for column in table]
  assert not any('transfer' in k or 'barrier' in k for k in keys)


def test_console_table(pair):
  headers, rows = tables.main_table(loading.load_runs(pair))
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


def test_console_table_with_chosen_measures(pair):
  headers, rows = tables.main_table(
    loading.load_runs(pair), measures=('barrier',)
  )
  assert headers == ['Run', 'Barrier\nloss']
  assert rows == [['FedAvg, E = 8', '+0.350'], ['FedFish, E = 8', '+0.250']]


def test_console_table_names_each_of_several_transfer_corpora(
  tmp_path, write_run, write_evaluation
):
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


def test_summary_csv(pair):
  text = tables.summary_csv(loading.load_runs(pair))
  rows = list(csv.DictReader(io.StringIO(text)))
  assert [row['run'] for row in rows] == ['FedAvg, E = 8', 'FedFish, E = 8']
  assert rows[1]['directory'] == 'fish'
  assert float(rows[1]['held_out/loss/0.5']) == 5.0
  assert float(rows[1]['held_out/loss/0.5/ci_high']) == 5.25
  assert float(rows[1]['barrier/error']) == pytest.approx(0.025)
  assert rows[1]['communication/uplink_units'] == '4'
  # No interval was computed for it: no columns for one.
  assert 'seconds_per_round/ci_low' not in rows[0]


def test_runs_without_anything_to_show(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n')
  (directory / 'timings.csv').unlink()
  runs = loading.load_runs([directory])
  assert tables.build_main_table(runs) == []
  assert tables.main_table(runs) == (['Run'], [['FedFish, E = 1']])


@pytest.mark.parametrize('width', [120, 88, 80, 60])
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
