"""Tables, counts and large numbers as commands print them."""

from collections.abc import Collection, Iterable, Sequence

_BINARY = ('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')
_COUNTS = ('', 'k', 'M', 'B', 'T')
_MIN_TEXT_WIDTH = 16
# A file or a pipe has no width.
_PIPE_WIDTH = 200
_FLOPS = tuple(f'{prefix}FLOP' for prefix in ('', *'kMGTPEZ'))


def count(number: int, noun: str) -> str:
  """Returns '1 group' or '2,000 groups'."""
  return f'{number:,} {noun}{"s" * (number != 1)}'


def print_facts(facts: Collection[tuple[str, str]]) -> None:
  """Prints a name and its text per line, the texts below each other."""
  width = max(len(name) for name, _ in facts)
  for name, text in facts:
    print(f'{name:<{width}}  {text}')


def print_table(
  title: str,
  headings: Sequence[str],
  rows: Iterable[Sequence[str]],
  *,
  text_columns: Collection[int] = (0,),
) -> None:
  """Prints a table. Cells are data: brackets and `:x:` stay as they are.

  Numbers are never cut. In a narrow terminal headings and texts are folded;
  where that does not do, each row becomes a line of text.

  Args:
    title: Line above the table.
    headings: One per column.
    rows: Cells of each row; columns on the right may be left out.
    text_columns: Positions of the columns that are aligned on the left; the
      others hold numbers.
  """
  from rich import box
  from rich.console import Console
  from rich.table import Table

  console = Console(markup=False, emoji=False, highlight=False)
  if not console.is_terminal:
    console.width = _PIPE_WIDTH
  rows = list(map(list, rows))
  console.print(title, style='bold', soft_wrap=True)
  widths = _fitting_widths(headings, rows, text_columns, console.width)
  if widths is None and rows:
    _print_lines(console, headings, rows)
    return
  table = Table(box=box.SIMPLE_HEAD, show_header=any(headings))
  for position, heading in enumerate(headings):
    table.add_column(
      heading,
      justify='left' if position in text_columns else 'right',
      # By itself rich cuts a long word, such as a path or an id.
      overflow='fold',
      width=widths[position] if widths else None,
    )
  for row in rows:
    table.add_row(*row)
  console.print(table)


def _fitting_widths(
  headings: Sequence[str],
  rows: Sequence[Sequence[str]],
  text_columns: Collection[int],
  room: int,
) -> list[int] | None:
  """Returns the widths of columns in a terminal; None: numbers do not fit."""
  from rich.cells import cell_len

  widths, least = [], []
  for position, heading in enumerate(headings):
    cells = [row[position] for row in rows if position < len(row)]
    lines = [*heading.split('\n'), *cells]
    widths.append(max(map(cell_len, lines)))
    is_text = position in text_columns
    parts = ' '.join(cells).split() if is_text else cells
    longest = max(map(cell_len, [*heading.split(), *parts]), default=0)
    least.append(min(longest, _MIN_TEXT_WIDTH) if is_text else longest)
  room -= 3 * len(widths) + 1  # Lines and blanks between columns.
  if sum(least) > room:
    return None
  while sum(widths) > room:
    # Headings are folded before texts.
    spare = [
      (width > need and position not in text_columns, width - need)
      for position, (width, need) in enumerate(zip(widths, least, strict=True))
    ]
    widths[spare.index(max(spare))] -= 1
  return widths


def _print_lines(console, headings, rows):
  """Prints a row after the other, each number behind its heading."""
  for row in rows:
    line = row[0]
    for heading, cell in zip(headings[1:], row[1:], strict=False):
      item = ' '.join(f'{heading} {cell}'.split()) if cell else ''
      if item and len(line) + len(item) > console.width - 3:
        console.print(f'{line},', soft_wrap=True)
        line = f'  {item}'
      elif item:
        line += f', {item}'
    console.print(line, soft_wrap=True)


def format_bytes(num_bytes: int) -> str:
  """Returns bytes with three digits or more, such as '1.25 GiB'."""
  return _scaled(num_bytes, 1024, _BINARY)


def format_count(number: int) -> str:
  """Returns a large number in short, such as '950' or '1.25 M'."""
  return _scaled(number, 1000, _COUNTS).strip()


def format_flops(num_operations: int) -> str:
  """Returns operations, such as '3.10 TFLOP'."""
  return _scaled(num_operations, 1000, _FLOPS)


def format_seconds(seconds: float) -> str:
  """Returns a duration, such as '12 ms', '3.4 s', '2 h 05 min' or '3.1 d'."""
  if seconds < 1:
    return f'{1000 * seconds:.3g} ms'
  if seconds < 60:
    return f'{seconds:.3g} s'
  if seconds < 3600:
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes} min {rest:02d} s'
  if seconds < 2 * 86_400:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f'{hours} h {minutes:02d} min'
  return f'{seconds / 86_400:,.1f} d'


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
  unit = 0
  while value >= base and unit + 1 < len(units):
    value /= base
    unit += 1
  digits = 0 if unit == 0 else 2 if value < 10 else 1 if value < 100 else 0
  return f'{value:,.{digits}f} {units[unit]}'
