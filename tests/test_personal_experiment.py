"""docs/experiments/personal.md says what its CSV holds."""

import collections
import csv
import pathlib
import statistics

_PAGES = pathlib.Path(__file__).parents[1] / 'docs' / 'experiments'
_SWEEPS = {'mnist': 'MNIST', 'targets': 'targets shuffled'}
_METHODS = {
  'fed_fomo': 'FedFomo',
  'local_only': 'local models',
  'fed_avg': 'FedAvg',
  'fed_prox': 'FedProx',
}


def _rows():
  with open(_PAGES / 'personal.csv', newline='') as file:
    return list(csv.DictReader(file))


def test_methods_on_own_test_rows():
  page = (_PAGES / 'personal.md').read_text(encoding='utf-8')
  found = collections.defaultdict(list)
  for row in _rows():
    found[row['sweep'], row['method']].append(row)
  for sweep, clients in _SWEEPS.items():
    for method, title in _METHODS.items():
      if (sweep, method) == ('targets', 'fed_prox'):
        continue
      rows = found.pop((sweep, method))
      assert [row['seed'] for row in rows] == ['1', '2']
      accuracies = [100 * float(row['accuracy']) for row in rows]
      cells = [f'{a:.1f}' for a in (*accuracies, statistics.mean(accuracies))]
      loss = statistics.mean(float(row['loss']) for row in rows)
      line = f'| {clients} | {title} | {" | ".join(cells)} | {loss:.3f} |'
      assert line in page
  local = found.pop(('baselines', 'local_only'))
  accuracy, loss = (
    statistics.mean(float(row[name]) for row in local)
    for name in ('accuracy', 'loss')
  )
  assert len(local) == 3
  line = f'local models, own test rows | {100 * accuracy:.1f} | {loss:.3f} |'
  assert line in (_PAGES / 'baselines.md').read_text(encoding='utf-8')
  for method, title in _METHODS.items():
    for row in found.pop(('debian', method), []):
      accuracy = 100 * float(row['accuracy'])
      line = f'| {title} | {float(row["loss"]):.4f} | {accuracy:.1f} |'
      assert line in page
  assert {key: len(rows) for key, rows in found.items()} == {
    ('privacy_0.01', 'fed_fomo'): 3,
    ('privacy_0.1', 'fed_fomo'): 6,
  }


def test_noise():
  page = (_PAGES / 'personal.md').read_text(encoding='utf-8')
  for row in _rows():
    sweep, _, rate = row['sweep'].partition('_')
    if sweep == 'privacy':
      epsilon = '-'
      if row['epsilon_mean']:
        epsilon = f'{float(row["epsilon_mean"]):.2f}'
      line = (
        f'| {rate} | {float(row["noise_multiplier"]):g} | {row["seed"]} | '
        f'{100 * float(row["accuracy"]):.2f} | {row["loss"]} | {epsilon} |'
      )
      assert line in page
