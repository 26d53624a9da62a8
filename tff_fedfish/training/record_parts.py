"""Parts of a run that write its tables, trackers and checkpoints."""

import contextlib
import dataclasses
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from models.model_shapes import num_parameters
from tff_fedfish.planning import communication
from tff_fedfish.run import columns, model_state, run_directory, store
from tff_fedfish.run.checkpoint_writer import CheckpointWriter
from tff_fedfish.run.trackers import RowSink
from tff_fedfish.training.parts import BuiltRun, FinishedRound, RoundPart


class TablesPart(RoundPart):
  """Writes metrics.csv and timings.csv, and keeps the history."""

  def __init__(self, run: BuiltRun):
    """Writes nothing yet; the log of the run must be open."""
    self._run = run

  def measure(self, done: FinishedRound) -> None:
    """See `RoundPart`."""
    config = self._run.config
    cohort_size = config.cohorts.cohort_size or len(self._run.participating)
    traffic = communication.until_round(config, done.round_num)
    personal = config.method.personal(config)
    if personal and (column := personal.downloads_column):
      # Clients differ: models that all of them were sent.
      downloads = self._run.checked.history.total(column)
      downloads += done.metrics.get(column, 0)
      traffic = traffic._replace(downlink=downloads / cohort_size)
    num_weights = num_parameters(config.model_shape())
    spent = communication.of_cohorts(
      traffic, cohort_size=cohort_size, num_weights=num_weights
    )
    for name, value in dataclasses.asdict(spent).items():
      done.metrics[f'communication/{name}'] = value
    if config.aggregation.is_quantized:
      done.metrics[columns.DOWNLINK_BYTES] = spent.downlink_bytes
    usage = resource.getrusage(resource.RUSAGE_SELF)
    done.timings['peak_memory_bytes'] = usage.ru_maxrss * 1024

  def record(self, done: FinishedRound) -> None:
    """See `RoundPart`."""
    checked, metrics = self._run.checked, done.metrics
    checked.log.log_round(done.round_num, metrics, done.timings)
    checked.history.add({'round': done.round_num, **metrics})


class SinksPart(RoundPart):
  """Sends the row to TensorBoard and trackers."""

  def __init__(self, sinks: Sequence[RowSink]):
    """Sends nothing yet; the sinks are entered."""
    self._sinks = sinks

  def record(self, done: FinishedRound) -> None:
    """See `RoundPart`."""
    # NumPy's scalars, too, are sent as Python's numbers.
    row = {
      name: value.item() if hasattr(value, 'item') else value
      for name, value in done.metrics.items()
    }
    row['round'] = done.round_num
    for sink in self._sinks:
      sink.log(row, done.write_line, done.timings)


class CheckpointsPart(RoundPart):
  """Saves the rounds that are due, and the last one that was recorded.

  Attributes:
    writer: Writes them; to be entered and left.
  """

  def __init__(
    self, run: BuiltRun, contents_of: Callable[[int], dict[str, Any]]
  ):
    """Saves nothing yet.

    Args:
      run: The run.
      contents_of: From a round, what its checkpoint keeps of other parts.
    """
    self._run = run
    self._contents_of = contents_of
    config, checked = run.config, run.checked
    self.writer = CheckpointWriter(
      run.workdir / store.CHECKPOINTS,
      keep_last=config.checkpoints.keep_last,
      keep_every_num_rounds=config.checkpoints.keep_every_num_rounds,
      is_regular=self._is_regular,
    )
    self._contents = run_directory.checkpoint_contents(
      config, checked.identity.fingerprint, checked.tokenizer
    )
    # A round without a row in metrics.csv could not be continued from.
    self._recorded: FinishedRound | None = None
    self._saved_round = None

  def before_round(self, round_num: int) -> None:
    """Saves the newest state where the last write failed.

    Raises:
      OSError: If it cannot be written, either.
    """
    if self.writer.has_failed:
      self.save()

  def record(self, done: FinishedRound) -> None:
    """See `RoundPart`."""
    # Without the state before it.
    self._recorded = dataclasses.replace(done, state_before=None)
    if self._is_regular(done.round_num):
      self.save()

  def save(self) -> None:
    """Saves the last recorded round, unless that is done.

    If the write before failed, this one has ended on return.

    Raises:
      OSError: If it cannot be written, either.
    """
    done = self._recorded
    # First: three states would be alive if one were still being written.
    has_failed = self.writer.wait() is not None
    if done is None or (done.round_num == self._saved_round and not has_failed):
      return
    state_type = self._run.process.initialize.type_signature.result
    tensors = model_state.to_tensors(done.state, state_type)
    contents = self._contents | self._contents_of(done.round_num)
    if done.weights is not None:
      tensors |= model_state.trainable_tensors(done.weights)
      contents |= run_directory.contents_of_widths(
        self._run.config, done.weights
      )
    self.writer.save(
      done.round_num,
      tensors,
      contents,
      keep_rounds=self._run.checked.history.good_and_finite(done.round_num),
    )
    self._saved_round = done.round_num
    if has_failed and (failure := self.writer.wait()):
      raise failure

  @contextlib.contextmanager
  def saving(self) -> Iterator[None]:
    """Has the last recorded round on disk in the end, also if a round fails.

    Of a disk that fails twice, the error is that of the checkpoint.
    """
    with self.writer:
      try:
        yield
      except BaseException as error:  # Such as no memory for the server's step.
        if error is self.writer.wait():
          raise
        try:
          self._save_and_wait()
        except Exception as failure:
          if isinstance(error, OSError):
            raise failure from error
          line = ' '.join((str(failure) or type(failure).__name__).split())
          print(f'fedfish: warning: {line}.', file=sys.stderr)
        raise
      self._save_and_wait()

  def _save_and_wait(self):
    self.save()
    # Waits, and writes again what failed.
    self.save()

  def _is_regular(self, round_num):
    every = self._run.config.checkpoints.every_num_rounds
    return self._run.is_due(round_num, every)
