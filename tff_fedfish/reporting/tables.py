"""The main table: one row per run, one column per score and cost."""

import dataclasses
import math
from collections.abc import (
  Callable,
  Collection,
  Hashable,
  Iterable,
  Iterator,
  Sequence,
)

from tff_fedfish.files import csv_file
from tff_fedfish.reporting import match
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.runs import OWN_TEST, Run, subjects
from tff_fedfish.reporting.targets import cost_of_target, target_losses
from tff_fedfish.reporting.words import shown, words_of


@dataclasses.dataclass(frozen=True)
class Cell:
  """One cell: text to show, its interval, and whether it is a best value."""

  value: Interval | None
  text: str
  interval_text: str
  is_best: bool


@dataclasses.dataclass(frozen=True)
class Column:
  """One column of the main table."""

  key: str
  """Name in summary.csv, such as 'held_out/loss/0.25'."""
  group: str
  """Heading shared by neighbours, with the unit."""
  cells: Sequence[Cell]
  """A cell per run, in the order of the rows."""
  panel: str = 'cost'
  """'held_out', 'own_test', 'transfer: CORPUS', 'spread: ' and one of these,
  'cost', 'training' or 'method'."""
  measure: str = 'further'
  """'loss', 'accuracy', 'spread', 'barrier', 'cost' or 'further'."""
  heading: str = ''
  """Heading of this column."""


def build_main_table(runs: Sequence[Run]) -> list[Column]:
  """Returns the columns in which any run, each a row, has a value.

  The best values of a column are marked if at least two runs have one and they
  are not all shown alike, among runs that were measured on the same clients
  and, of evaluations, after equal rounds and fine-tuning.
  """
  return [c for c in _columns(runs) if any(cell.value for cell in c.cells)]


def main_table(
  runs: Sequence[Run],
  *,
  measures: Collection[str] = ('loss', 'accuracy', 'barrier', 'cost'),
) -> tuple[list[str], list[list[str]]]:
  """Returns the main table as text, for a console.

  Args:
    runs: The runs, in the order of the rows.
    measures: Values of `Column.measure` to keep. Without 'accuracy' the table
      fits a narrower terminal.

  Returns:
    Headings, which may hold line breaks, and a row per run. The best value of a
    column ends with ' *'. A value that a run does not have is '–'.
  """
  columns = build_main_table(runs)
  panels = {column.panel for column in columns}
  kept = [column for column in columns if column.measure in measures]
  texts = [
    [cell.text + ' *' * cell.is_best for cell in column.cells]
    for column in kept
  ]
  rows = list(map(list, zip([run.label for run in runs], *texts, strict=True)))
  return ['Run', *(_console_heading(column, panels) for column in kept)], rows


def summary_csv(runs: Sequence[Run]) -> str:
  """Returns the main table as CSV, with the ends of intervals as columns."""
  header = ['run', 'directory', 'method', 'num_local_epochs', 'round']
  lines = [
    [run.label, run.name, run.algorithm, run.num_local_epochs, run.last_round]
    for run in runs
  ]
  for column in build_main_table(runs):
    values = [cell.value for cell in column.cells]
    ends = {'': 'mean'}
    if any(value and value.ci_low is not None for value in values):
      ends |= {'/ci_low': 'ci_low', '/ci_high': 'ci_high'}
    header += [column.key + end for end in ends]
    for line, value in zip(lines, values, strict=True):
      line += [value and getattr(value, name) for name in ends.values()]
  return csv_file(header, lines)


def _columns(runs: Sequence[Run]) -> Iterator[Column]:
  """Yields all columns that the main table may have, in order."""
  words = words_of(runs)
  unit = words.unit.capitalize()
  samples = [match.sample_of(run) for run in runs]
  clients_of_runs = [match.clients_of(run) for run in runs]

  def column(
    key,
    group,
    show,
    lower_is_better=None,
    values=None,
    timing=None,
    scales=samples,
    **place,
  ):
    """Returns a column of values, of a timing, or of the metric `key`.

    Only values of runs with equal `scales` are ranked.
    """
    if timing:
      values = [run.typical(timing) for run in runs]
    elif values is None:
      values = [run.last(key) for run in runs]
    cells = _cells(values, show, lower_is_better, scales)
    return Column(key, group, cells, **place)

  spreads = []
  for subject in subjects(runs):
    found = [run.evaluation(subject) for run in runs]
    panel, prefix = (
      separator.join(filter(None, subject)) for separator in (': ', '/')
    )
    # Models that are not fine-tuned have no share.
    shares = {
      fraction: '' if subject == OWN_TEST else f'{100 * fraction:g} %'
      for fraction in sorted({f for e in found if e for f in e.fractions})
    }
    scales = {
      fraction: [
        e and (clients, match.evaluation_key(run, e, fraction))
        for run, clients, e in zip(runs, clients_of_runs, found, strict=True)
      ]
      for fraction in shares
    }
    for measure, show in (
      ('loss', _rounded(3)),
      ('accuracy', _rounded(1, 100)),
      ('bits_per_byte', _rounded(3)),
    ):
      for fraction, share in shares.items():
        yield column(
          f'{prefix}/{measure}/{fraction:g}',
          words.label(measure),
          show,
          measure != 'accuracy',
          values=[e and e.scores.get((fraction, measure)) for e in found],
          scales=scales[fraction],
          panel=panel,
          measure='further' if measure == 'bits_per_byte' else measure,
          heading=share,
        )
    yield column(
      f'{prefix}/unknown_tokens',
      'Unknown tokens (%)',
      _rounded(1, 100),
      values=[e and e.unknown_tokens for e in found],
      panel=panel,
    )
    for fraction, share in shares.items():
      of_runs = [e.spread(fraction) if e else {} for e in found]
      spreads += [
        column(
          f'{prefix}/spread/{fraction:g}/{name}',
          ', '.join(filter(None, (words.label('loss'), share))),
          show,
          True,
          values=[spread.get(name) for spread in of_runs],
          scales=scales[fraction],
          panel=f'spread: {panel}',
          measure='spread',
          heading=heading,
        )
        for name, heading, show in _SPREAD
      ]
  yield from spreads
  replayed = [run.barrier() for run in runs]
  signed = _rounded(3, 1, '+')
  # Each is measured from its run's own model: it ranks nothing.
  for name, group, show in (
    ('loss', 'Barrier, loss (nats)', signed),
    ('global_loss', 'Barrier: global loss', _rounded(3)),
    ('local_loss', 'Barrier: local loss', _rounded(3)),
    ('error', 'Barrier, error (points)', _rounded(2, 100, '+')),
  ):
    key, measure = f'barrier/{name}', 'barrier' if name == 'loss' else 'further'
    values = [
      # Where none was replayed, as measured while training.
      (e and e.barrier.get(name)) or run.last(key)
      for e, run in zip(replayed, runs, strict=True)
    ]
    yield column(key, group, show, values=values, measure=measure)
  # A mean over fewer is noisier, but may be of those who know.
  values = [e and e.effective_clients for e in replayed]
  key, group = 'effective_clients', 'Effective clients'
  yield column(key, group, _rounded(1), values=values)
  # Fewer rounds are not a saving.
  fewer = True if len({run.last_round for run in runs}) == 1 else None
  key = 'communication/uplink_units'
  yield column(key, 'Uplink (units)', _count, fewer, measure='cost')
  key = 'communication/total_units'
  yield column(key, 'Both ways (units)', _count, fewer)
  targets = target_losses(runs)
  costs = [
    cost_of_target(run, targets.get(match.sample_of(run), -math.inf))
    for run in runs
  ]
  losses = ' or '.join(map('{:.3f}'.format, targets.values()))
  for name, heading, show in (
    ('rounds', 'rounds', _count),
    ('tokens', f'million {words.unit}s', _rounded(3, 1e-6)),
    ('bytes', 'GB', _rounded(3, 1e-9)),
  ):
    key, values = f'to_target/{name}', [cost.get(name) for cost in costs]
    group = f'To a held-out loss of {losses}'
    yield column(key, group, show, True, values, heading=heading)
  key, group = 'seconds_per_round', 'Seconds per round'
  yield column(key, group, _seconds, True, timing='seconds', measure='cost')
  key, group = 'tokens_per_second', f'{unit}s per second'
  yield column(key, group, '{:,.0f}'.format, False, timing=key)
  key, group = 'peak_memory_bytes', 'Peak memory (GiB)'
  yield column(key, group, _rounded(2, 2**-30), True, timing=key)
  loss, accuracy = words.loss_label, words.accuracy_label
  seen = [
    sum(row.get('train/num_tokens') or 0 for row in run.metrics) or None
    for run in runs
  ]
  millions, percent = _rounded(3, 1e-6), _rounded(1, 100)
  for facts in (
    ('round', 'Rounds', _count),
    ('tokens_seen', f'{unit}s seen (millions)', millions, None, seen),
    ('train/loss', f'Train {loss}', _rounded(3)),
    ('held_out/loss', f'Held-out {loss}', _rounded(3), True),
    ('held_out/accuracy', f'Held-out {accuracy}', percent, False),
    ('personal/loss', f'Own test {loss}', _rounded(3), True),
    ('personal/accuracy', f'Own test {accuracy}', percent, False),
  ):
    yield column(*facts, panel='training')
  for name in ('mean', 'max'):
    # Less is not better where less was learned.
    key, group = f'privacy/epsilon_{name}', 'Epsilon of a client'
    yield column(key, group, _rounded(3), panel='training', heading=name)
  for name in _method_columns(runs):
    yield column(name, name, _signed_count, panel='method')


def _method_columns(runs: Sequence[Run]) -> Iterable[str]:
  """Returns columns that methods add; not those that end at 0 in all runs."""
  return dict.fromkeys(
    column.name
    for run in runs
    if (config := run.train_config)
    for column in config.method.columns(config)
    if run.last(column.name)
  )


def _cells(
  values: Iterable[Interval | float | None],
  show: Callable[[float], str],
  lower_is_better: bool | None,
  scales: Sequence[Hashable],
) -> list[Cell]:
  """Returns a cell per run; `lower_is_better` None marks no best one.

  The best value of each of the equal `scales` is marked.
  """
  intervals = [
    value if isinstance(value, Interval | None) else Interval(value)
    for value in values
  ]
  best = {}
  for scale in set(scales):
    means = [
      value.mean
      for value, other in zip(intervals, scales, strict=True)
      if value and other == scale
    ]
    # Equal as shown is equal: a tie in all rows tells nothing apart.
    if lower_is_better is not None and len(set(map(show, means))) > 1:
      best[scale] = show((min if lower_is_better else max)(means))
  cells = []
  for value, scale in zip(intervals, scales, strict=True):
    text, ends = '–', ''
    if value:
      text, ends = show(value.mean), value.shown_ends(show)
    cells.append(Cell(value, text, ends, text == best.get(scale)))
  return cells


def _console_heading(column: Column, panels: Collection[str]) -> str:
  panel, _, corpus = column.panel.partition(': ')
  num_corpora = sum(other.startswith(panel) for other in panels)
  words = {
    'held_out': 'Held-out',
    'own_test': 'Own test rows',
    'transfer': 'Transfer',
  }.get(panel, '')
  parts = [
    words,
    corpus if num_corpora > 1 else '',
    column.group.split(' (')[0].removeprefix('Token ').replace(', ', '\n'),
    column.heading,
  ]
  return '\n'.join(part for part in parts if part)


def _rounded(places: int, scale: float = 1, sign: str = ''):
  return lambda value: shown(value, places, scale, sign)


def _count(value):
  return f'{value:,.0f}' if abs(value) >= 10_000 else f'{value:.5g}'


def _signed_count(value):
  return _count(value).replace('-', '−')


def _seconds(value):
  places = 1
  if 0.001 <= value < 10:
    places = max(0, 1 - math.floor(math.log10(value)))
  return f'{value:.{places}f}'


# Of `Evaluation.spread`.
_SPREAD = (
  ('p10', 'p10', _rounded(3)),
  ('p50', 'p50', _rounded(3)),
  ('p90', 'p90', _rounded(3)),
  ('worst', 'worst tenth', _rounded(3)),
  ('hurt', 'hurt (%)', _rounded(0, 100)),
)
