"""Measurements of a run: metrics.csv and timings.csv.

`metrics.csv` holds only values that a resumed run repeats, so that the file
of an interrupted and resumed run equals that of an uninterrupted one byte for
byte; seconds and everything else that differs from run to run go to
`timings.csv`. A row is on disk before `log_round` returns: log a round before
saving its checkpoint, and every checkpoint finds its rows. Timings are of no
consequence: a timings.csv that is missing or damaged starts again.
"""

import contextlib
import csv
import io
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from tff_fedfish import files
from tff_fedfish.errors import UserError

Row = dict[str, float | int | None]

_ROUND = 'round'
_INTEGER = re.compile(r'[+-]?\d+')


class MetricsLog:
  """Writes one row per round to each file of a run, within a `with` block.

  Args:
    run_directory: The run's directory; must exist when the block is entered.
    resume_after_round: The round of the checkpoint that a resumed run
      restored: later rows, which the run will repeat, and a last line that is
      cut off are removed. None: the run starts, and the files with it.
    metric_names: Columns of metrics.csv after `round`, in order.
    timing_names: Columns of timings.csv after `round`, in order.

  Raises:
    UserError: On construction, which touches no file: if metrics.csv of the run
      to resume is missing, damaged or has other columns, or has no row for
      `resume_after_round`.
  """

  def __init__(
    self,
    run_directory: str | os.PathLike,
    resume_after_round: int | None,
    *,
    metric_names: Sequence[str],
    timing_names: Sequence[str],
  ):
    directory = pathlib.Path(run_directory)
    path = directory / 'metrics.csv'
    self._metrics = _Table(path, metric_names)
    self._timings = _Table(directory / 'timings.csv', timing_names)
    if resume_after_round is not None:
      self._metrics.read(resume_after_round)
      with contextlib.suppress(UserError):
        self._timings.read(resume_after_round, any_columns=True)
      rows = self._metrics.kept_rows
      last = rows[-1][_ROUND] if rows else None
      if last != resume_after_round:
        raise UserError(
          f'{str(path)!r} must have a row for round {resume_after_round}, '
          'from which the run resumes, but its last before is '
          f'{"none" if last is None else last}. Restore the file, or use '
          'another --workdir.'
        )

  def __enter__(self) -> 'MetricsLog':
    self._metrics.start()
    self._timings.start()
    return self

  def __exit__(self, *_) -> None:
    for table in (self._metrics, self._timings):
      # Rows are on the disk; a failed write has been raised, with its file.
      with contextlib.suppress(OSError):
        table.file.close()

  def log_round(
    self,
    round_num: int,
    metrics: Mapping[str, float | int | None],
    timings: Mapping[str, float],
  ) -> None:
    """Adds the row of one round to both files.

    Args:
      round_num: The round; greater than the one logged before.
      metrics: Values by column. A column that is absent or None has an empty
        cell; floats are written so that reading returns the same number.
      timings: Values of timings.csv.

    Raises:
      ValueError: If a name is not a column.
      TypeError: If a value is no number.
      OSError: If a file cannot be written, such as on a full disk; names it.
    """
    metrics_line = self._metrics.line(round_num, metrics)
    timings_line = self._timings.line(round_num, timings)
    self._timings.append(timings_line)
    self._metrics.append(metrics_line)


def read_metrics(path: str | os.PathLike) -> list[Row]:
  """Reads a metrics.csv or timings.csv, also of a run in progress.

  Returns:
    One dictionary per row: int where the cell is one, else float; None where
    it is empty. A last line that is cut off is left out.

  Raises:
    UserError: If there is no such file, or a line of it is damaged.
  """
  _, rows = _read(pathlib.Path(path))
  return rows


def logged_rounds(path: str | os.PathLike) -> set[int]:
  """Returns the rounds that have a row in a metrics.csv; see `read_metrics`."""
  return {row[_ROUND] for row in read_metrics(path)}


class _Table:
  """One CSV file with a fixed list of columns.

  Attributes:
    kept_rows: Rows of the file up to the round to resume after.
    file: Where rows are added, once the table is started.
  """

  def __init__(self, path, names):
    self._path = path
    self._header = [_ROUND, *names]
    self.kept_rows, self.file = [], None

  def read(self, last_round, *, any_columns=False):
    """Keeps the rows up to a round; of other columns those that are known."""
    path = self._path
    header, rows = _read(path)
    if header != self._header and not any_columns:
      missing = [name for name in self._header if name not in header]
      extra = [name for name in header if name not in self._header]
      raise UserError(
        f'{str(path)!r} must have the columns that this run writes to '
        f'be resumed, but it lacks {missing or "none"}, has {extra or "none"} '
        'besides, or has another order. Resume with the version and the '
        'config of fedfish that wrote it, or use another --workdir.'
      )
    self.kept_rows = [
      {name: row.get(name) for name in self._header}
      for row in rows
      if row[_ROUND] <= last_round
    ]

  def start(self):
    """Rewrites the file with the rows that are kept, and opens it for more."""
    with files.write_atomically(self._path) as file:
      file.write(files.csv_lines([self._header]))
      file.writelines(self.line(row[_ROUND], row) for row in self.kept_rows)
    self.file = open(self._path, 'ab')

  def line(self, round_num, values):
    unknown = sorted(set(values) - set(self._header))
    if unknown:
      raise ValueError(
        f'{unknown[0]!r} must be a column of {self._path.name}, which are '
        f'{self._header}.'
      )
    values = {**values, _ROUND: round_num}
    cells = [_cell(name, values.get(name)) for name in self._header]
    return files.csv_lines([cells])

  def append(self, line):
    with files.naming(self._path):
      self.file.write(line.encode())
      self.file.flush()
      os.fsync(self.file.fileno())


def _read(path):
  """Returns the columns of a file and its rows."""
  try:
    data = path.read_bytes()
  except FileNotFoundError as error:
    raise UserError(
      f'{str(path)!r} must be a file that `fedfish train` wrote, but it '
      'does not exist. Name a run directory that is whole.'
    ) from error
  # What follows the last end of line was cut off, or is still being written.
  whole = data[: data.rfind(b'\n') + 1]
  rows, line_num, last = [], 1, -1
  try:
    # Wrong bytes stand in the cell that is named.
    text = io.StringIO(whole.decode('utf-8', 'backslashreplace'), newline='')
    header, *lines = csv.reader(text)
    if header[:1] != [_ROUND]:
      raise ValueError(f'the first column must be {_ROUND!r}')
    # Editors end a line that was cut off.
    if lines and len(lines[-1]) < len(header):
      del lines[-1]
    for cells in lines:
      line_num += 1
      row = _row(header, cells)
      if row[_ROUND] <= last:
        raise ValueError(f'`round` must be above {last}, found {row[_ROUND]}')
      rows.append(row)
      last = row[_ROUND]
    return header, rows
  except (ValueError, csv.Error) as error:
    raise UserError(
      f'{str(path)!r} must hold one number per column in every line, by '
      f'ascending round, but does not in line {line_num} ({error}). Restore '
      'the file, or name another directory.'
    ) from error


def _row(header, cells):
  if len(cells) != len(header):
    raise ValueError(
      f'columns: found {len(cells)}, the header has {len(header)}'
    )
  row = dict(zip(header, map(_number, cells), strict=True))
  return row | {_ROUND: int(cells[0])}


def _number(cell):
  if not cell:
    return None
  return int(cell) if _INTEGER.fullmatch(cell) else float(cell)


def _cell(name, value):
  if value is None:
    return ''
  # NumPy's scalars: a float32 has no shortest form that a double would share.
  value = value.item() if hasattr(value, 'item') else value
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise TypeError(f'{name!r} must be a number or None, found {value!r}.')
  return repr(value)
