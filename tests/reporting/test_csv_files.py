"""The CSV files of a report against numbers by hand."""

import csv
import io
import json

import pytest
from report_runs import write_evaluation, write_run

from tff_fedfish.reporting import comparisons, loading, scores, summary


def test_comparisons_csv(pair):
  table = scores.read_scores(loading.load_runs(pair)).comparisons
  text = comparisons.comparisons_csv(table)
  lines = list(csv.DictReader(io.StringIO(text)))
  assert len(lines) == len(table)
  # As in test_scores.test_comparisons_of_a_pair.
  assert lines[0] == {
    'setting': '',
    'method': 'FedFish',
    'baseline': 'FedAvg',
    'subject': 'held-out clients',
    'fraction': '0.0',
    'measure': 'loss',
    'mean': '-0.25',
    'ci_low': '-0.5',
    'ci_high': '0.0',
    'share_below_zero': '0.5',
    'num_seeds': '1',
    'num_clients': '4',
    'seed_means': "'-0.25",
    'round': '2',
  }


def test_summary_csv(pair):
  text = summary.summary_csv(loading.load_runs(pair))
  rows = csv.DictReader(io.StringIO(text))
  assert len(set(rows.fieldnames)) == len(rows.fieldnames)
  average, fish = rows
  assert [row['run'] for row in (average, fish)] == [
    *('FedAvg, E = 8', 'FedFish, E = 8')
  ]
  assert (fish['num_local_epochs'], fish['round']) == ('8', '2')
  assert list(fish)[:8] == [
    *('run', 'directory', 'method', 'num_local_epochs', 'round'),
    *('held_out/loss/0', 'held_out/loss/0/ci_low', 'held_out/loss/0/ci_high'),
  ]
  # Losses 5, 6, 4.5, 4.5 after personalization on one half.
  assert {
    key: float(value)
    for key, value in fish.items()
    if key.startswith('held_out/spread/0.5/')
  } == {
    # Sorted 4.5, 4.5, 5, 6: at places 0.3, 1.5 and 2.7.
    'held_out/spread/0.5/p10': 4.5,
    'held_out/spread/0.5/p50': 4.75,
    'held_out/spread/0.5/p90': pytest.approx(5.7),
    'held_out/spread/0.5/worst': 6.0,
    'held_out/spread/0.5/hurt': 0.0,
  }
  assert fish['held_out/loss/0.5/ci_high'] == '5.25'
  assert fish['transfer/sotu_by_president/loss/0.25'] == '6.55'
  assert float(fish['barrier/error']) == pytest.approx(0.025)
  assert fish['communication/uplink_units'] == '4'
  # No interval was computed for it: no columns for one.
  assert 'seconds_per_round/ci_low' not in fish


def test_summary_csv_has_every_column(tmp_path):
  run = write_run(tmp_path / 'run')
  metrics = run / 'metrics.csv'
  names = ('train/num_tokens', 'personal/loss', 'personal/accuracy')
  names += ('privacy/epsilon_mean', 'privacy/epsilon_max')
  header, *lines = metrics.read_text().splitlines()
  lines = [f'{header},{",".join(names)}', *(f'{i},5,4,3,2,1' for i in lines)]
  metrics.write_text('\n'.join(lines) + '\n')
  path = write_evaluation(
    run,
    'e',
    losses={0.25: (5.0,) * 4},
    barriers=((4.0, 4.5, 0.2, 0.1),),
    facts={'unknown_token_fraction': 0.125},
  )
  values = json.loads((path / 'summary.json').read_text())
  values['fractions'][0]['bits_per_byte'] = 1.5
  values['client_server_barrier']['local_loss']['mean'] = 4.0
  values['client_server_barrier']['global_loss']['mean'] = 4.5
  (path / 'summary.json').write_text(json.dumps(values))
  text = summary.summary_csv(loading.load_runs([run]))
  [row] = csv.DictReader(io.StringIO(text))
  assert [name for name in row if '/ci_' not in name] == [
    *('run', 'directory', 'method', 'num_local_epochs', 'round'),
    *('held_out/loss/0.25', 'held_out/accuracy/0.25'),
    *('held_out/bits_per_byte/0.25', 'held_out/unknown_tokens'),
    *(
      f'held_out/spread/0.25/{name}'
      for name in ('p10', 'p50', 'p90', 'worst', 'hurt')
    ),
    *('barrier/loss', 'barrier/global_loss', 'barrier/local_loss'),
    *('barrier/error', 'communication/uplink_units'),
    *('communication/total_units', 'communication/downlink_units'),
    *('seconds_per_round', 'tokens_per_second', 'peak_memory_bytes'),
    *('tokens_seen', 'train/loss', 'held_out/loss', 'held_out/accuracy'),
    *names[1:],
  ]
  assert row['held_out/bits_per_byte/0.25'] == '1.5'
  # Three rounds of 5, round 0 too.
  assert row['tokens_seen'] == '15'
  assert [row[name] for name in names[1:]] == ['4', '3', '2', '1']


def test_clients_csv_has_every_client(pair):
  text = scores.read_scores(loading.load_runs(pair)).clients_csv()
  rows = list(csv.DictReader(io.StringIO(text)))
  # Of 2 runs: 2 fractions of 4 held-out clients, 2 of 2 of the other corpus.
  assert len(rows) == 2 * (2 * 4 + 2 * 2)
  assert rows[4] == {
    'arm': 'FedAvg, E = 8',
    'subject': 'held-out clients',
    'kind': 'held_out',
    'model': 'global',
    'round': '2',
    'fraction': '0.5',
    'client_id': 'a.org',
    'loss_before': '6.0',
    'accuracy_before': '0.04',
    'loss_after': '5.0',
    'accuracy_after': '0.05',
  }
