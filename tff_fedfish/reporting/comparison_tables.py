"""Tables of comparisons: side against side, by question."""

from collections.abc import Callable, Sequence

from tff_fedfish.reporting.arms import subjects
from tff_fedfish.reporting.comparisons import (
  Comparison,
  most_personalized,
  of_question,
)
from tff_fedfish.reporting.equal_bytes import AtEqualBytes
from tff_fedfish.reporting.estimates import MEASURES
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.pairs import QUESTIONS, Pair
from tff_fedfish.reporting.tables import (
  ABSENT,
  UPLINK,
  Cell,
  Table,
  number_text,
)
from tff_fedfish.reporting.words import (
  PLACES,
  SCALES,
  capitalized,
  interval_words,
  listed,
  said_fraction,
  shown,
  words_of,
)


def comparison_tables(findings: Findings) -> list[Table]:
  """Returns method against method: a table per subject and question.

  Held-out clients come first; for each, the same settings, each side at its
  best, and equal bytes, each only where the runs allow it. Two values in one
  cell are of the side named first and of the other.
  """
  tables = []
  for subject in subjects(findings.runs):
    for question in QUESTIONS:
      rows = of_question(findings.comparisons, question, subject)
      if rows:
        tables.append(_comparison_table(findings, rows, len(tables) + 1))
  rows = findings.at_equal_bytes
  if rows:
    tables.append(_equal_bytes_table(findings, rows))
  return tables


def _comparison_table(
  findings: Findings, rows: Sequence[Comparison], number: int
) -> Table:
  """Returns the comparisons of a question on one subject."""
  words, first = words_of(findings.runs), rows[0]
  headings = [
    'Comparison',
    f'Difference in loss (nats per {words.unit})',
    f'Difference in {words.accuracy} (points)',
    'Clients × seeds',
    'Clients with lower loss by the first',
  ]
  later = [most_personalized(findings.comparisons, row) for row in rows]
  if any(later):
    headings += ['Loss after personalization', 'Hurt (first / second)']
  title = f'{capitalized(first.pair.question)}: {first.subject}'
  if first.fraction:
    title += f', {said_fraction(first.fraction)}'
  chosen_on = dict.fromkeys(str(r.pair.chosen_on) for r in rows)
  if chosen := listed([name for name in chosen_on if name]):
    title += f', chosen on {chosen}'
  return Table(
    name=f'comparisons_{number}',
    title=title,
    subject=str(first.subject),
    headings=[*headings, 'Uplink (models)'],
    rows=[
      [
        *_comparison(row),
        *(_personalized(after) if any(later) else ()),
        _uplink(row),
      ]
      for row, after in zip(rows, later, strict=True)
    ],
  )


def _comparison(row: Comparison) -> list[Cell]:
  """Returns the first cells of a row of a comparison."""
  share = row.differences['loss'] and row.differences['loss'].share_below_zero
  return [
    _names(row.pair, row.pair.names),
    _difference(row, 'loss'),
    _difference(row, 'accuracy'),
    Cell(f'{row.num_clients} × {row.num_seeds}') if row.num_seeds else ABSENT,
    ABSENT if row.problem or share is None else Cell(f'{100 * share:.0f} %'),
  ]


def _difference(row: Comparison | AtEqualBytes, measure: str) -> Cell:
  if row.problem:
    return Cell(row.problem)
  difference = row.differences[measure]
  if difference is None:
    return ABSENT
  text = shown(difference.mean, PLACES[measure], SCALES[measure], '+')
  ends = interval_words(difference, measure, '+')
  if row.has_choice:
    ends = 'no interval'
  elif difference.is_finding and row.verdict(measure) == 'undecided':
    ends += ': undecided'
  return Cell(text, ends)


def _equal_bytes_table(
  findings: Findings, rows: Sequence[AtEqualBytes]
) -> Table:
  """Returns pairs at the traffic that both sides reach."""
  words = words_of(findings.runs)
  return Table(
    name='equal_bytes',
    title='At equal bytes: held-out clients scored while training',
    headings=[
      'Comparison',
      'Models up and down',
      f'Difference in loss (nats per {words.unit})',
      f'Difference in {words.accuracy} (points)',
      'Seeds',
    ],
    rows=[
      [
        _names(row.pair, row.pair.names_of_curves),
        Cell(number_text(row.traffic)),
        *(_difference(row, measure) for measure in MEASURES),
        Cell(f'{row.num_seeds}'),
      ]
      for row in rows
    ],
  )


def _names(pair: Pair, names: Sequence[str]) -> Cell:
  setting = f'\n{pair.setting}' * bool(pair.setting)
  return Cell(' − '.join(names) + setting)


def _personalized(row: Comparison | None) -> list[Cell]:
  """Returns the difference after personalization, and whom it hurts."""
  if row is None:
    return [ABSENT] * 2
  cell = _difference(row, 'loss')
  numbers = f'{100 * row.fraction:g} %, {row.num_clients} × {row.num_seeds}'
  ends = f'{cell.interval}; {numbers}' if cell.interval else numbers
  hurt = [side.hurt for side in row.sides]
  return [
    Cell(cell.text, ends),
    _both(hurt, lambda share: f'{100 * share:.0f} %'),
  ]


def _uplink(row: Comparison) -> Cell:
  units = [s.in_rounds(UPLINK) for s in row.sides]
  return _both(units, number_text)


def _both(values: Sequence[float | None], show: Callable[[float], str]) -> Cell:
  if None in values:
    return ABSENT
  return Cell(' / '.join(map(show, values)))
