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
import time
import types
from collections.abc import Mapping, Sequence

from tff_fedfish import files
from tff_fedfish.errors import UserError

TOKENS_SEEN = 'train/tokens_seen'
"""Sum of `train/num_tokens` up to a round. No column of metrics.csv."""

_ROUND = 'round'
_INTEGER = re.compile(r'[+-]?\d+')
_EVENTS_PREFIX = 'events.out.tfevents.'


class MetricsLog:
  """Writes one row per round to each file of a run, within a `with` block.

  Args:
    run_directory: The run's directory; must exist when the block is entered.
    resume_after_round: The round of the checkpoint that a resumed run
      restored: later rows, which the run will repeat, and a last line that is
      cut off are removed. None: the run starts, and the files with it.
    metric_names: Columns of metrics.csv after `round`, in order.
    timing_names: Columns of timings.csv after `round`, in order; in
      TensorBoard they stand under `timings/`.

  Raises:
    UserError: On construction, which touches no file: if a file of the run to
      resume is missing, damaged or has other columns, or metrics.csv has no row
      for `resume_after_round`.
  """

  def __init__(
    self,
    run_directory: str | os.PathLike,
    resume_after_round: int | None,
    *,
    metric_names: Sequence[str],
    timing_names: Sequence[str],
  ):
    self._directory = pathlib.Path(run_directory)
    path = self._directory / 'metrics.csv'
    self._metrics = _Table(path, metric_names, resume_after_round)
    self._timings = _Table(
      self._directory / 'timings.csv', timing_names, resume_after_round
    )
    self._last_round = -1
    if resume_after_round is not None:
      self._last_round = resume_after_round
      rows = self._metrics.kept_rows
      last = int(rows[-1][0]) if rows else None
      # The last row of timings.csv may be missing.
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
    self._events = _EventFile(
      self._directory / 'tensorboard', self._last_round + 1
    )
    return self

  def __exit__(self, *_) -> None:
    for table in (self._metrics, self._timings, self._events):
      table.file.close()

  def log_round(
    self,
    round_num: int,
    metrics: Mapping[str, float | int | None],
    timings: Mapping[str, float],
    scalars: Mapping[str, float] = types.MappingProxyType({}),
  ) -> None:
    """Adds the row of one round to every file.

    Args:
      round_num: The round; greater than the one logged before.
      metrics: Values by column. A column that is absent or None has an empty
        cell; floats are written so that reading returns the same number.
      timings: Values of timings.csv.
      scalars: Further values for TensorBoard.

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
    metrics_line = self._metrics.line(round_num, metrics)
    timings_line = self._timings.line(round_num, timings)
    self._timings.append(timings_line)
    self._metrics.append(metrics_line)
    self._last_round = round_num
    values = {f'timings/{name}': value for name, value in timings.items()}
    self._events.add_scalars(round_num, {**metrics, **scalars, **values})


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
  """One CSV file with a fixed list of columns.

  Attributes:
    kept_rows: Rows of the file up to the round to resume after.
    file: Where rows are added, once the table is started.
  """

  def __init__(self, path, names, resume_after_round):
    self._path = path
    self._header = [_ROUND, *names]
    if len(set(self._header)) < len(self._header):
      raise ValueError(
        f'The columns of {path.name} must differ, found {self._header}.'
      )
    self.kept_rows, self.file = [], None
    if resume_after_round is None:
      return
    header, lines = _read_lines(path, drops_cut_off=True)
    if header != self._header:
      missing = [name for name in self._header if name not in header]
      extra = [name for name in header if name not in self._header]
      raise UserError(
        f'{str(path)!r} must have the columns that this run writes to '
        f'be resumed, but it lacks {missing or "none"}, has {extra or "none"} '
        'besides, or has another order. Resume with the version and the '
        'config of fedfish that wrote it, or use another --workdir.'
      )
    for line_num, cells in lines:
      if len(cells) != len(header) or not _INTEGER.fullmatch(cells[0]):
        raise _damaged(path, line_num, f'found {cells}')
      if int(cells[0]) <= resume_after_round:
        self.kept_rows.append(cells)

  def start(self):
    """Rewrites the file with the rows that are kept, and opens it for more."""
    with files.write_atomically(self._path) as file:
      file.write(files.csv_lines([self._header, *self.kept_rows]))
    self.file = open(self._path, 'ab')

  def line(self, round_num, values):
    unknown = sorted(set(values) - set(self._header[1:]))
    if unknown:
      raise ValueError(
        f'{unknown[0]!r} must be a column of {self._path.name}, which are '
        f'{self._header}.'
      )
    cells = [_format(name, values.get(name)) for name in self._header[1:]]
    return files.csv_lines([[str(int(round_num)), *cells]])

  def append(self, line):
    self.file.write(line.encode())
    self.file.flush()
    os.fsync(self.file.fileno())


class _EventFile:
  """Scalars in TensorBoard's event format, written without TensorFlow.

  Every start of a run has a file of its own. TensorBoard reads them in the
  order of their names, which therefore count up; and they tell no host name.
  It forgets what earlier files say of `first_step` and later steps, as a
  resumed run repeats them.
  """

  def __init__(self, directory: pathlib.Path, first_step: int):
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer import record_writer

    directory.mkdir(parents=True, exist_ok=True)
    found = (path.suffix[1:] for path in directory.glob(f'{_EVENTS_PREFIX}*'))
    number = max((int(text) for text in found if text.isdecimal()), default=-1)
    # Unbuffered: an event is in the file, whole, when `write` returns.
    self.file = open(
      directory / f'{_EVENTS_PREFIX}{number + 1:06d}', 'xb', buffering=0
    )
    self._records = record_writer.RecordWriter(self.file)
    self._write(file_version='brain.Event:2')
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(step=first_step, session_log=start)

  def add_scalars(self, step, values):
    """Adds one event with a scalar per tag; None is left out."""
    from tensorboard.compat.proto import summary_pb2

    scalars = [
      summary_pb2.Summary.Value(tag=tag, simple_value=value)
      for tag, value in values.items()
      if value is not None
    ]
    self._write(step=step, summary=summary_pb2.Summary(value=scalars))

  def _write(self, **fields):
    from tensorboard.compat.proto import event_pb2

    event = event_pb2.Event(wall_time=time.time(), **fields)
    self._records.write(event.SerializeToString())


def _read_lines(path, *, drops_cut_off):
  """Returns the header's cells and, of every whole line, number and cells."""
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


def _damaged(path, line_num, what) -> UserError:
  return UserError(
    f'{str(path)!r} must hold one number per column in every line, but line '
    f'{line_num} does not ({what}). Restore the file, or leave this run out.'
  )


def _format(name, value):
  if value is None:
    return ''
  # NumPy's scalars: a float32 has no shortest form that a double would share.
  value = value.item() if hasattr(value, 'item') else value
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise TypeError(f'{name!r} must be a number or None, found {value!r}.')
  return repr(value)


def _parse(cell):
  if not cell:
    return None
  return int(cell) if _INTEGER.fullmatch(cell) else float(cell)
