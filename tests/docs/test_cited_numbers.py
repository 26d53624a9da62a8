"""Numbers of README's Results and which_method are those of the results.

docs/cited.csv lists each: page, number as printed, file below docs, patterns of
its rows, those of the rows to subtract seed by seed, and column.
"""

import collections
import csv
import fnmatch
import pathlib
import re

import pytest

from tff_fedfish.evaluation import intervals

_ROOT = pathlib.Path(__file__).parents[2]
_LIST = _ROOT / 'docs' / 'cited.csv'
_NUMBER = r'[+−]?\d+(?:\.\d+)?'
# The interval's level, code, targets of links, and numbers of list items.
_NO_RESULT = re.compile(r'95 %|`[^`]*`|\]\([^)]*\)|^\d+\. ', re.MULTILINE)
_PAGES = 'README.md', 'docs/which_method.md'


def _cited():
  with _LIST.open(encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


def _numbers(text: str) -> collections.Counter:
  """Returns the results that a text prints, with their half widths."""
  text = ' '.join(_NO_RESULT.sub(' ', text).split())
  return collections.Counter(
    re.findall(rf'(?<![\w.]){_NUMBER}(?: ± {_NUMBER})?', text)
  )


def _scores(file: str, rows: str, column: str) -> dict[str, float]:
  """Returns seed -> score of the rows whose columns match the patterns.

  Args:
    file: Path below docs.
    rows: Patterns, such as 'method=kfac alpha=0.1'.
    column: Name of the score; accuracies are shown in percent.
  """
  patterns = [item.split('=', 1) for item in rows.split()]
  scale, found = 100 if 'accuracy' in column else 1, {}
  with (_ROOT / 'docs' / file).open(encoding='utf-8', newline='') as opened:
    for row in csv.DictReader(opened):
      if all(fnmatch.fnmatchcase(row[k], glob) for k, glob in patterns):
        name = row.get('directory') or row.get('run') or ''
        seed = row.get('seed') or name.rpartition('seed')[2]
        assert seed not in found, (rows, 'chooses two rows of a seed')
        found[seed] = scale * float(row[column])
  assert found, (file, rows)
  return found


def _printed(value: float, like: str) -> str:
  """Returns a number with the decimals and the sign of another."""
  decimals = len(like.partition('.')[2])
  text = f'{value:{"+" * (like[0] in "+−")}.{decimals}f}'
  zero = f'{0:.{decimals}f}'
  return zero if text in (f'-{zero}', f'+{zero}') else text.replace('-', '−')


@pytest.mark.parametrize(
  'entry', _cited(), ids=lambda entry: f'{entry["page"]}: {entry["printed"]}'
)
def test_number_is_that_of_the_results(entry):
  scores = _scores(entry['file'], entry['rows'], entry['column'])
  if entry['minus']:
    others = _scores(entry['file'], entry['minus'], entry['column'])
    assert scores.keys() == others.keys()
    scores = {seed: score - others[seed] for seed, score in scores.items()}
  values = list(scores.values())
  mean, _, half = entry['printed'].partition(' ± ')
  assert _printed(sum(values) / len(values), mean) == mean
  if half:
    # None below three seeds.
    assert _printed(intervals.t_half_width(values), half) == half


@pytest.mark.parametrize('page', _PAGES)
def test_every_number_has_an_entry(page):
  text = (_ROOT / page).read_text('utf-8')
  if page == 'README.md':
    text = text.partition('\n## Results\n')[2].partition('\n## ')[0]
  assert _numbers(text) == collections.Counter(
    entry['printed'] for entry in _cited() if entry['page'] == page
  )


def test_planted_numbers_are_found():
  text = '2. By `1e-8`, +0.1 ±\n0.20 ([x](a1.md)) and −3; 95 %; E = 4.'
  assert _numbers(text) == {'+0.1 ± 0.20': 1, '−3': 1, '4': 1}
