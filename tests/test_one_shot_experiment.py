"""docs/experiments/one_shot.md says what its CSV holds."""

import collections
import csv
import pathlib
import statistics

import pytest
import result_tables

_PAGES = pathlib.Path(__file__).parents[1] / 'docs' / 'experiments'
_TITLES = {
  'kfac': 'FedFisher, K-FAC',
  'kfac_cg': 'K-FAC, exact minimum',
  'kfac_5': 'K-FAC, 5 steps of conjugate gradients',
  'kfac_paper': 'K-FAC, compressed',
  'diagonal': 'FedFisher, diagonal',
  'diagonal_paper': 'diagonal, compressed',
  'fisher_merge': 'FisherMerge',
  'reg_mean': 'RegMean',
  'ot_fusion': 'OTFusion',
  'pfnm': 'PFNM',
  'pfnm_maximized': 'PFNM, published cost',
  'dense': 'DENSE',
  'fed_fish': 'FedFish, one round',
  'average': 'average',
  'start': 'the start',
}


@pytest.fixture(name='scores', scope='module')
def _scores():
  """Cell -> method -> seed -> score; accuracy in percent, of text the loss."""
  scores = collections.defaultdict(lambda: collections.defaultdict(dict))
  with open(_PAGES / 'one_shot.csv', newline='') as file:
    for row in csv.DictReader(file):
      score = 100 * float(row['accuracy'])
      if row['corpus'] == 'debian':
        score = float(row['loss'])
      cell = row['corpus'], row['alpha'], row['num_clients'], row['num_rounds']
      scores[cell][row['method']][row['seed']] = score
  return scores


def table(methods, digits=1):
  """Returns a row per method: mean over seeds, and minus the average's."""
  average, rows = methods['average'], []
  for method, title in _TITLES.items():
    if method not in methods:
      continue
    of_seeds = methods[method]
    mean = f'{statistics.mean(of_seeds.values()):.{digits}f}'
    difference = ''
    if method != 'average':
      differences = [of_seeds[s] - average[s] for s in of_seeds if s in average]
      difference = f'{differences[0]:+.{digits}f}'
      if len(differences) > 1:
        difference = result_tables.t_interval(differences, digits)
    rows.append(f'| {title} | {len(of_seeds)} | {mean} | {difference} |')
  return rows


def test_tables(scores):
  text = (_PAGES / 'one_shot.md').read_text('utf-8')
  for (corpus, *_, num_rounds), methods in scores.items():
    if num_rounds == '1':
      lines = table(methods, 3 if corpus == 'debian' else 1)
      assert '\n'.join(lines) in text
