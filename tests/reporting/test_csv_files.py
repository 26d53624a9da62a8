"""The CSV files of a report against numbers by hand."""

import csv
import io

import pytest
from report_runs import add_metrics, read_report, write_scored

from tff_fedfish.reporting import comparisons, loading, summary


def _rows(text):
  return list(csv.DictReader(io.StringIO(text)))


def test_comparisons_csv(pair):
  found = read_report(pair).comparisons
  lines = _rows(comparisons.comparisons_csv(found))
  # Loss and accuracy.
  assert len(lines) == 2 * len(found)
  # FedFish 5.5, 6.5, 5, 6 and FedAvg 6, 7, 5, 6: -0.5, -0.5, 0, 0.
  ends = [float(lines[0].pop(f'ci_{end}')) for end in ('low', 'high')]
  # A resample is all -0.5, or all 0, in one of 16. Of four clients their
  # distance from the mean is scaled by 3.1824 / 1.96 sqrt(4 / 3) = 1.8749.
  scaled = 0.25 * 1.8749
  assert ends == pytest.approx([-0.25 - scaled, -0.25 + scaled], abs=1e-4)
  assert ' '.join(f'{key}={cell}' for key, cell in lines[0].items()) == (
    'question=same settings setting= method=FedFish baseline=FedAvg '
    'subject=held-out clients fraction=0.0 measure=loss mean=-0.25 '
    'share_below_zero=0.5 num_seeds=1 num_clients=4 problem= '
    'trials=1 baseline_trials=1 chosen_on= round=2 baseline_round=2 '
    'difference_1=-0.25'
  )


def test_summary_csv(pair):
  average, fish = _rows(summary.summary_csv(loading.load_runs(pair)))
  assert [row['run'] for row in (average, fish)] == [
    *('FedAvg, E = 8', 'FedFish, E = 8')
  ]
  assert (fish['num_local_epochs'], fish['round']) == ('8', '2')
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
  # 6.0 and 7.1; all of one client is drawn in a quarter of the resamples. Of
  # two clients the scale is 12.7062 / 1.96 sqrt(2) = 9.1680.
  transfer = 'transfer/sotu_by_president/loss/0.25'
  assert [
    float(fish[f'{transfer}{end}']) for end in ('', '/ci_low', '/ci_high')
  ] == pytest.approx(
    [6.55, 6.55 - 0.55 * 9.1680, 6.55 + 0.55 * 9.1680], abs=1e-4
  )
  assert float(fish['barrier/error']) == pytest.approx(0.025)
  assert fish['communication/uplink_units'] == '4'
  # No interval was computed for it: no columns for one.
  assert 'seconds_per_round/ci_low' not in fish


def test_means_of_survivors_are_left_empty(tmp_path):
  losses = {0.0: (5.0, 6.0), 0.5: (4.0, float('nan'))}
  run = write_scored(tmp_path / 'run', losses)
  [row] = _rows(summary.summary_csv(loading.load_runs([run])))
  assert row['held_out/loss/0'] == '5.5'
  empty = [key for key in row if key.startswith('held_out/') and '/0.5' in key]
  empty.remove('held_out/spread/0.5/hurt')
  assert {row[key] for key in empty} == {''}
  assert row['held_out/spread/0.5/hurt'] == '0.5'


def test_summary_csv_has_every_column(tmp_path):
  run = write_scored(
    tmp_path / 'run',
    {0.25: (5.0,) * 4},
    evaluation={
      'barriers': ((4.0, 4.5, 0.2, 0.1),),
      # Of 4 clients with 500 tokens each.
      'facts': {'unknown_token_fraction': 0.125, 'num_scored_bytes': 10_000},
    },
  )
  add_metrics(
    run,
    train__num_tokens=(5,) * 3,
    personal__loss=(4,) * 3,
    personal__accuracy=(3,) * 3,
    privacy__epsilon_mean=(2,) * 3,
    privacy__epsilon_max=(1,) * 3,
  )
  [row] = _rows(summary.summary_csv(loading.load_runs([run])))
  last = ('personal/loss', 'personal/accuracy')
  last += ('privacy/epsilon_mean', 'privacy/epsilon_max')
  assert ' '.join(name for name in row if '/ci_' not in name) == (
    'run directory method num_local_epochs round held_out/loss/0.25 '
    'held_out/accuracy/0.25 held_out/bits_per_byte/0.25 '
    'held_out/unknown_tokens held_out/round '
    'held_out/spread/0.25/p10 held_out/spread/0.25/p50 '
    'held_out/spread/0.25/p90 held_out/spread/0.25/worst '
    'held_out/spread/0.25/hurt barrier/loss '
    'barrier/global_loss barrier/local_loss barrier/error '
    'communication/uplink_units communication/total_units '
    'communication/downlink_units seconds_per_round tokens_per_second '
    'peak_memory_bytes tokens_seen train/loss held_out/loss held_out/accuracy '
    f'{" ".join(last)}'
  )
  # Three rounds of 5, round 0 too.
  assert row['tokens_seen'] == '15'
  assert [row[name] for name in last] == ['4', '3', '2', '1']
  # 5 nats of each of 2000 tokens, in bits, over 10,000 bytes.
  bits = float(row['held_out/bits_per_byte/0.25'])
  assert bits == pytest.approx(1.442695)


def test_clients_csv_has_every_client(pair):
  rows = _rows(read_report(pair).clients_csv())
  # Of 2 runs: 2 fractions of 4 held-out clients, 2 of 2 of the other corpus.
  assert len(rows) == 2 * (2 * 4 + 2 * 2)
  assert ','.join(rows[1].values()) == (
    'FedAvg, E = 8,FedAvg, E = 8,held-out clients,held_out,2,a.org,0.5,4,500,4,'
    '6.0,0.04,5.0,0.05,global'
  )


def test_no_one_round_where_each_seeds_best_is_another(tmp_path):
  runs = []
  for method in ('fed_avg', 'fed_fish'):
    for seed in range(2):
      number = 1 + seed * (method == 'fed_fish')
      best = {'best_of_rounds': 2, 'chosen_on': 'held_out_clients'}
      facts = {'checkpoint': {'round': number, **best}}
      scored = {'round_num': number, 'facts': facts}
      options = {'algorithm': method, 'seed': seed, 'evaluation': scored}
      path = tmp_path / f'{method}{seed}'
      runs.append(write_scored(path, 5.0, **options))
  found = read_report(runs).comparisons
  line, _ = _rows(comparisons.comparisons_csv(found))
  assert (line['round'], line['baseline_round']) == ('', '1')
