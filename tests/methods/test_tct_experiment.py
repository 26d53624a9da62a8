"""docs/experiments/tct.md says what its CSV holds."""

import collections
import csv
import pathlib

_PAGES = pathlib.Path(__file__).parents[2] / 'docs' / 'experiments'
_TITLES = {'tct': 'TCT', 'fed_avg': 'FedAvg'}


def test_rows_of_the_page():
  page = (_PAGES / 'tct.md').read_text(encoding='utf-8')
  runs = collections.defaultdict(dict)
  with open(_PAGES / 'tct.csv', newline='') as file:
    for row in csv.DictReader(file):
      rate = row['convex_learning_rate']
      run = row['corpus'], row['method'], rate, row['seed']
      runs[run][int(row['round'])] = row
  for (corpus, method, rate, seed), rows in runs.items():
    cells = [_TITLES[method]]
    if corpus == 'debian':
      cells += [rate, seed]
      cells += [f'{float(rows[r]["train_loss"]):.3f}' for r in range(5, 11)]
      cells.append(f'{float(rows[10]["held_out_loss"]):.3f}')
    else:
      cells.append(seed)
      cells += [f'{100 * float(rows[r]["accuracy"]):.1f}' for r in (20, 30, 41)]
    assert f'| {" | ".join(cells)} |' in page
  assert {corpus for corpus, *_ in runs} == {'debian', 'fashion_mnist'}
