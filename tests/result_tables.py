"""Writes the tables of docs/experiments/ from docs/results/ and the CSVs there.

    PYTHONPATH=.:tests python tests/result_tables.py

A table stands below a line `<!-- NAME: COLUMN, ... -->` of a page, which keeps
its titles; docs/experiments/tables.csv says which runs a row compares. Columns:

  loss, accuracy: one arm minus the other, over the seeds of both
  bytes: the same of the loss, at the traffic that both reach
  ours X, theirs X: the mean of X over an arm's seeds
"""

import csv
import functools
import pathlib
import re
import statistics

import pandas as pd

from tff_fedfish.reporting import over_seeds

DOCS = pathlib.Path(__file__).parents[1] / 'docs'
PAGES = [
  DOCS / 'experiments' / f'{name}.md'
  for name in ('images', 'text', 'other_methods')
]
_TABLE = re.compile(
  r'^<!-- (?P<name>\w+): (?P<columns>.+) -->\n\n(?:\|.*\n){2}'
  r'(?P<rows>(?:\|.*\n)*)',
  re.MULTILINE,
)


@functools.cache
def _rows(file: str) -> list[dict[str, str]]:
  with open(DOCS / file, encoding='utf-8', newline='') as opened:
    return list(csv.DictReader(opened))


def _runs(arm: str, file: str = 'summary') -> dict[str, list[dict[str, str]]]:
  """Returns seed -> rows of an arm.

  Args:
    arm: 'EXPERIMENT/DIRECTORY' of docs/results, without '-seedN', or 'FILE.csv
      COLUMN=VALUE ...' of a file below docs.
    file: CSV file of the experiment.
  """
  name, *wanted = arm.split(' ')
  by_seed = {}
  if wanted:
    for row in _rows(name):
      if dict(item.split('=') for item in wanted).items() <= row.items():
        seed = row.get('seed') or row.get('seeds.model_seed') or '1'
        by_seed.setdefault(seed, []).append(row)
  else:
    experiment, directory = arm.split('/')
    for row in _rows(f'results/{experiment}/{file}.csv'):
      run = row['directory'] if file == 'summary' else row['run']
      run, _, seed = run.partition('-seed')
      if run == directory:
        by_seed.setdefault(seed or '1', []).append(row)
  assert by_seed, arm
  return by_seed


def _scores(arm, measure, fraction='0', clients='held_out'):
  """Returns seed -> score after the last round; none if it was not kept."""
  names = f'{clients}/{measure}/{fraction}', f'best_{measure}', measure
  scores = {}
  for seed, (row,) in _runs(arm).items():
    value = next(filter(None, map(row.get, names)), None)
    if value is not None:
      scores[seed] = float(value)
  return scores


def _curves(arm, until):
  """Returns seed -> curve, up to some models of traffic if there is a limit."""
  curves = {}
  for seed, rows in _runs(arm, 'held_out_loss').items():
    curve = pd.DataFrame(rows)[['round', 'models', 'loss']].astype(float)
    curve = curve.rename(columns={'models': 'traffic'})
    curves[seed] = curve[curve['traffic'] <= float(until or 'inf')]
  return curves


def _at_round(arm, number):
  return {
    seed: float(row['loss'])
    for seed, rows in _runs(arm, 'held_out_loss').items()
    for row in rows
    if row['round'] == number
  }


def _scale(measure):
  """Returns the factor and the decimals of a measure's cells."""
  if 'accuracy' in measure:
    return 100, 2
  return 1, 3 if 'loss' in measure else 2


def _number(value, digits, sign='+'):
  text = f'{value:{sign}.{digits}f}'
  zero = f'{0:.{digits}f}'
  return zero if text.strip('+-') == zero else text.replace('-', '−')


def _text(
  difference: over_seeds.SeedDifference | None, measure: str, is_chosen: bool
) -> str:
  """Returns the mean and half of the interval, or the difference of each seed.

  Args:
    difference: None: no seed of both, or one side diverged.
    measure: It decides the unit and the decimals.
    is_chosen: Whether an arm was chosen on the scored clients: no interval.
  """
  scale, digits = _scale(measure)
  if difference is None:
    return 'no comparison'
  mean, half = _number(scale * difference.mean, digits), difference.half_width
  if is_chosen:
    return mean
  if half is None:
    values = difference.by_seed.values()
    return ' and '.join(_number(scale * value, digits) for value in values)
  text = f'{mean} ± {scale * half:.{digits}f}'
  return f'**{text}**' if difference.leaves_out_zero else text


def _cell(
  column: str,
  ours: str,
  theirs: str,
  is_chosen: str = '',
  until: str | None = None,
  at: str | None = None,
  **which: str,
) -> str:
  """Returns a cell.

  Args:
    column: As in the module's docstring.
    ours: Arm.
    theirs: The arm to subtract; '': none.
    is_chosen: As in `_text`; '': no.
    until: Models of traffic up to which curves are read.
    at: Round whose losses are compared instead of the last scores.
    **which: Fraction and clients of the scores.
  """
  side, _, measure = column.rpartition(' ')
  if side:
    scale, digits = _scale(measure)
    values = _scores(ours if side == 'ours' else theirs, measure, **which)
    return _number(scale * statistics.mean(values.values()), digits, sign='')
  if not theirs:
    return ''
  arms = ours, theirs
  if column == 'bytes':
    files = (DOCS / 'results' / arm.split('/')[0] for arm in arms)
    if not all((path / 'held_out_loss.csv').exists() for path in files):
      return 'not kept'
    sides = (_curves(arm, until) for arm in arms)
    return _text(over_seeds.at_equal_traffic(*sides)[1], 'loss', False)
  if at:
    sides = (_at_round(arm, at) for arm in arms)
  else:
    sides = (_scores(arm, measure, **which) for arm in arms)
  return _text(over_seeds.difference(*sides), measure, bool(is_chosen))


def _lines(name: str, columns: str) -> str:
  """Returns the rows of a table in Markdown."""
  lines = []
  for row in _rows('experiments/tables.csv'):
    if row['table'] == name:
      options = dict(item.split('=') for item in row['options'].split())
      cells = (
        _cell(column, row['ours'], row['theirs'], **options)
        for column in columns.split(', ')
      )
      lines.append(f'| {" | ".join([row["labels"], *cells])} |\n')
  assert lines, name
  return ''.join(lines)


def with_tables(page: str) -> str:
  """Returns a page's text with the rows of its tables made again."""
  return _TABLE.sub(
    lambda match: (
      match[0].removesuffix(match['rows'])
      + _lines(match['name'], match['columns'])
    ),
    page,
  )


if __name__ == '__main__':
  for path in PAGES:
    path.write_text(with_tables(path.read_text('utf-8')), 'utf-8')
