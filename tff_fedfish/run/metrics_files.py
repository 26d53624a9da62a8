"""Measurements of a run: metrics.csv, timings.csv and TensorBoard events.

`metrics.csv` holds only values that a resumed run repeats, so that the file
of an interrupted and resumed run equals that of an uninterrupted one byte for
byte; seconds and everything else that differs from run to run go to
`timings.csv`. A row is on disk before `log_round` returns: log a round before
saving its checkpoint, and every checkpoint finds its rows.
"""

import csv
import io
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.run import event_files

_ROUND = 'round'
_INTEGER = re.compile(r'[+-]?\d+')


class MetricsLog:
  """Writes one row per round to each file of a run.

  Args:
    run_directory: The run's directory; must exist.
    resume_after_round: The round of the checkpoint that a resumed run
      restored: later rows, which the run will repeat, and a last line that is
      cut off are removed. None: the run starts, and the files with it.
    metric_names: Columns of metrics.csv after `round`, in order.
    timing_names: Columns of timings.csv after `round`, in order; in
      TensorBoard they stand under `timings/`.

  Attributes:
    num_removed_rows: Rows of metrics.csv that were removed at the start.

  Raises:
    UserError: If a file of the run to resume is missing, damaged or has other
      columns, or metrics.csv has no row for `resume_after_round`. No file is
      touched then.
  """

  def __init__(
    self,
    run_directory: str | os.PathLike,
    resume_after_round: int | None,
    *,
    metric_names: Sequence[str],
    timing_names: Sequence[str],
  ):
    run_directory = pathlib.Path(run_directory)
    self._metrics = _Table(run_directory / 'metrics.csv', metric_names)
    self._timings = _Table(run_directory / 'timings.csv', timing_names)
    # Both are checked before either is changed.
    kept_metrics, self.num_removed_rows = self._metrics.rows_to_keep(
      resume_after_round
    )
    kept_timings, _ = self._timings.rows_to_keep(
      resume_after_round, may_end_before=True
    )
    self._metrics.start(kept_metrics)
    self._timings.start(kept_timings)
    self._last_round = -1 if resume_after_round is None else resume_after_round
    self._events = event_files.EventFile(
      run_directory / 'tensorboard', first_step=self._last_round + 1
    )

  def __enter__(self) -> 'MetricsLog':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def log_round(
    self,
    round_num: int,
    metrics: Mapping[str, float | int | None],
    timings: Mapping[str, float],
  ) -> None:
    """Adds the row of one round to every file.

    Args:
      round_num: The round; greater than the one logged before.
      metrics: Values by column. A column that is absent or None has an empty
        cell; floats are written so that reading returns the same number.
      timings: Values of timings.csv.

    Raises:
      ValueError: If a name is not a column, or the round not a later one.
      TypeError: If a value is no number.
      OSError: If a file cannot be written, such as on a full disk.
    """
    if round_num <= self._last_round:
      raise ValueError(
        f'Round {round_num} must come after round {self._last_round}, which '
        'has been logged.'
      )
    metrics_row = self._metrics.row(round_num, metrics)
    timings_row = self._timings.row(round_num, timings)
    self._timings.append(timings_row)
    self._metrics.append(metrics_row)
    self._last_round = round_num
    values = {f'timings/{name}': value for name, value in timings.items()}
    self._events.add_scalars(round_num, {**metrics, **values})

  def close(self) -> None:
    """Closes the files; all rows are on disk already."""
    self._metrics.close()
    self._timings.close()
    self._events.close()


def require_resumable(
  run_directory: str | os.PathLike,
  resume_after_round: int,
  *,
  metric_names: Sequence[str],
  timing_names: Sequence[str],
) -> None:
  """Raises the UserError that `MetricsLog` would raise; touches nothing."""
  run_directory = pathlib.Path(run_directory)
  metrics = _Table(run_directory / 'metrics.csv', metric_names)
  metrics.rows_to_keep(resume_after_round)
  timings = _Table(run_directory / 'timings.csv', timing_names)
  timings.rows_to_keep(resume_after_round, may_end_before=True)


def logged_rounds(path: str | os.PathLike) -> set[int]:
  """Returns the rounds that have a whole row in a metrics.csv.

  Raises:
    UserError: If there is no such file, or it cannot be read.
  """
  header, lines = _read_lines(pathlib.Path(path), drops_cut_off=True)
  return {
    int(cells[0])
    for _, cells in lines
    if len(cells) == len(header) and _INTEGER.fullmatch(cells[0])
  }


def read_metrics(
  path: str | os.PathLike, *, drops_cut_off: bool = False
) -> list[dict[str, float | int | None]]:
  """Reads a metrics.csv or timings.csv.

  Args:
    path: The file; it may be of a run in progress, whose last line may not be
      whole yet and is then left out.
    drops_cut_off: Whether a last line with too few cells is left out, too, as
      when a run is resumed.

  Returns:
    One dictionary per row: int where the cell is one, else float; None where
    it is empty.

  Raises:
    UserError: If there is no such file, or a line of it is damaged.
  """
  header, lines = _read_lines(pathlib.Path(path), drops_cut_off=drops_cut_off)
  rows = []
  for line_num, cells in lines:
    try:
      rows.append(dict(zip(header, map(_parse, cells), strict=True)))
    except ValueError as error:
      raise _damaged(path, line_num, str(error)) from error
  return rows


class _Table:
  """One CSV file with a fixed list of columns."""

  def __init__(self, path: pathlib.Path, names: Sequence[str]):
    self._path = path
    self._header = [_ROUND, *names]
    if len(set(self._header)) < len(self._header):
      raise ValueError(
        f'The columns of {path.name} must differ, found {self._header}.'
      )
    self._file = None

  def rows_to_keep(
    self, resume_after_round: int | None, *, may_end_before: bool = False
  ) -> tuple[list[list[str]], int]:
    """Returns the rows up to a round, and how many come after it.

    Args:
      resume_after_round: The round; None: no row is kept.
      may_end_before: Whether the row of that round may be missing.
    """
    if resume_after_round is None:
      if not self._path.exists():
        return [], 0
      return [], max(self._path.read_bytes().count(b'\n') - 1, 0)
    header, lines = _read_lines(self._path, drops_cut_off=True)
    if header != self._header:
      missing = [name for name in self._header if name not in header]
      extra = [name for name in header if name not in self._header]
      raise UserError(
        f'{str(self._path)!r} must have the columns that this run writes to '
        f'be resumed, but it lacks {missing or "none"}, has {extra or "none"} '
        'besides, or has another order. Resume with the version and the '
        'config of fedfish that wrote it, or use another --workdir.'
      )
    kept = []
    for line_num, cells in lines:
      if len(cells) != len(header) or not _INTEGER.fullmatch(cells[0]):
        raise _damaged(self._path, line_num, f'found {cells}')
      if int(cells[0]) <= resume_after_round:
        kept.append(cells)
    last = int(kept[-1][0]) if kept else None
    if last != resume_after_round and not may_end_before:
      raise UserError(
        f'{str(self._path)!r} must have a row for round '
        f'{resume_after_round}, from which the run resumes, but its last '
        f'before is {"none" if last is None else last}. Restore the file, '
        'or use another --workdir.'
      )
    return kept, len(lines) - len(kept)

  def start(self, rows: Sequence[Sequence[str]]) -> None:
    """Rewrites the file with these rows, and opens it for more."""
    with files.write_atomically(self._path) as file:
      file.write(''.join(map(_to_line, [self._header, *rows])))
    self._file = open(self._path, 'ab')

  def row(
    self, round_num: int, values: Mapping[str, float | int | None]
  ) -> list[str]:
    unknown = sorted(set(values) - set(self._header[1:]))
    if unknown:
      raise ValueError(
        f'{unknown[0]!r} must be a column of {self._path.name}, which are '
        f'{self._header}.'
      )
    cells = [_format(name, values.get(name)) for name in self._header[1:]]
    return [str(int(round_num)), *cells]

  def append(self, row: Sequence[str]) -> None:
    self._file.write(_to_line(row).encode())
    self._file.flush()
    os.fsync(self._file.fileno())

  def close(self) -> None:
    self._file.close()


def _read_lines(
  path: pathlib.Path, *, drops_cut_off: bool = False
) -> tuple[list[str], list[tuple[int, list[str]]]]:
  """Returns the header's cells and, of every whole line, number and cells."""
  path = pathlib.Path(path)
  try:
    data = path.read_bytes()
  except FileNotFoundError as error:
    raise UserError(
      f'{str(path)!r} must be a file that `fedfish train` wrote, but it '
      'does not exist. Name a run directory that is whole.'
    ) from error
  # What follows the last end of line was cut off, or is still being written.
  whole = data[: data.rfind(b'\n') + 1]
  try:
    rows = list(csv.reader(io.StringIO(whole.decode('utf-8'), newline='')))
  except (UnicodeDecodeError, csv.Error) as error:
    raise _damaged(path, 1, str(error)) from error
  if not rows or not rows[0] or rows[0][0] != _ROUND:
    raise _damaged(path, 1, f'the first column must be {_ROUND!r}')
  header, *rows = rows
  # Editors end a line that was cut off.
  if drops_cut_off and rows and len(rows[-1]) < len(header):
    del rows[-1]
  return header, list(enumerate(rows, start=2))


def _damaged(path: str | os.PathLike, line_num: int, what: str) -> UserError:
  return UserError(
    f'{str(path)!r} must hold one number per column in every line, but line '
    f'{line_num} does not ({what}). Restore the file, or leave this run out.'
  )


def _to_line(row: Sequence[str]) -> str:
  line = io.StringIO()
  csv.writer(line, lineterminator='\n').writerow(row)
  return line.getvalue()


def _format(name: str, value: float | int | None) -> str:
  if value is None:
    return ''
  # NumPy's scalars: a float32 has no shortest form that a double would share.
  value = value.item() if hasattr(value, 'item') else value
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise TypeError(f'{name!r} must be a number or None, found {value!r}.')
  return repr(value)


def _parse(cell: str) -> float | int | None:
  if not cell:
    return None
  return int(cell) if _INTEGER.fullmatch(cell) else float(cell)
