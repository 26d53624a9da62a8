"""Tables and counts as commands print them."""

from collections.abc import Collection, Iterable, Sequence


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
  whole_columns: Collection[int] = (),
  has_frame: bool = False,
  pipe_width: int = 200,
) -> None:
  """Prints a table. Cells are data: brackets and `:x:` stay as they are.

  Args:
    title: Line above the table.
    headings: One per column.
    rows: Cells of each row; columns on the right may be left out.
    text_columns: Positions of the columns that are aligned on the left.
    whole_columns: Positions of the columns that are never folded.
    has_frame: Whether lines surround the cells, and the title is folded to the
      width of the table.
    pipe_width: Width for a file or a pipe, which has none. Unit: characters.
  """
  from rich import box
  from rich.console import Console
  from rich.table import Table

  console = Console(markup=False, emoji=False, highlight=False)
  if not console.is_terminal:
    console.width = pipe_width
  table = Table(box=box.SIMPLE_HEAD)
  if has_frame:
    table = Table(title=title)
  else:
    console.print(title, style='bold', soft_wrap=True)
  for position, heading in enumerate(headings):
    table.add_column(
      heading,
      justify='left' if position in text_columns else 'right',
      no_wrap=position in whole_columns,
    )
  for row in rows:
    table.add_row(*row)
  console.print(table)
