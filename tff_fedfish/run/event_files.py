"""Scalars in TensorBoard's event format, written without TensorFlow."""

import io
import pathlib
import re
import time
from collections.abc import Mapping
from typing import Any

_PREFIX = 'events.out.tfevents.'


class EventFile:
  """One event file of a run; every start of the run has a file of its own.

  TensorBoard reads the files in the order of their names, which therefore
  count up; and they tell no host name.

  Args:
    directory: Where the event files lie; created when absent.
    first_step: The first step that this file will hold. TensorBoard then
      forgets what earlier files say of this step and later ones, as a resumed
      run repeats them.
  """

  def __init__(self, directory: pathlib.Path, first_step: int):
    from tensorboard.compat.proto import event_pb2

    directory.mkdir(parents=True, exist_ok=True)
    numbers = [
      int(match[1])
      for entry in directory.iterdir()
      if (match := re.fullmatch(re.escape(_PREFIX) + r'(\d+)', entry.name))
    ]
    name = f'{_PREFIX}{max(numbers, default=-1) + 1:06d}'
    # Unbuffered: an event is in the file, whole, when `write` returns.
    self._file = open(directory / name, 'xb', buffering=0)
    self._write(file_version='brain.Event:2')
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(step=first_step, session_log=start)

  def add_scalars(
    self, step: int, values: Mapping[str, float | int | None]
  ) -> None:
    """Adds one event with a scalar per tag; None is left out."""
    from tensorboard.compat.proto import summary_pb2

    scalars = [
      summary_pb2.Summary.Value(tag=tag, simple_value=value)
      for tag, value in values.items()
      if value is not None
    ]
    self._write(step=step, summary=summary_pb2.Summary(value=scalars))

  def close(self) -> None:
    """Closes the file; all events are in it already."""
    self._file.close()

  def _write(self, **fields: Any) -> None:
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer import record_writer

    event = event_pb2.Event(wall_time=time.time(), **fields)
    record = io.BytesIO()
    record_writer.RecordWriter(record).write(event.SerializeToString())
    self._file.write(record.getvalue())
