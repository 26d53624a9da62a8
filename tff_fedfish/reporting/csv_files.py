"""CSV files that programs read exactly and spreadsheets open safely."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def csv_file(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """Returns a CSV file with numbers in full precision.

  Args:
    names: The header.
    rows: Cells. None is empty. A text that a spreadsheet would take for a
      formula begins with an apostrophe.
  """
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(names)
  writer.writerows(map(_cell, row) for row in rows)
  return file.getvalue()


def _cell(value: Any) -> Any:
  if value is None:
    return ''
  if isinstance(value, str):
    formula = ('=', '+', '-', '@', '\t', '\r')
    return f"'{value}" if value.startswith(formula) else value
  # NumPy's scalars: a Python number is written exactly.
  return value.item() if hasattr(value, 'item') else value
