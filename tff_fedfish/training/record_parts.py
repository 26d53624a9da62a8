"""The tables, trackers and checkpoints of a run."""

import contextlib
import dataclasses
import resource
import sys
from collections.abc import Iterator, Sequence

from models.model_shapes import num_parameters
from tff_fedfish.planning import communication
from tff_fedfish.run import columns, model_state, run_directory, store
from tff_fedfish.run.checkpoint_writer import CheckpointWriter
from tff_fedfish.run.trackers import RowSink
from tff_fedfish.training.client_states_part import ClientStatesPart
from tff_fedfish.training.features_part import FeaturesPart
from tff_fedfish.training.parts import BuiltRun, FinishedRound


def measure_traffic(run: BuiltRun, done: FinishedRound) -> None:
  """Adds the communication until a round, and the memory of this process."""
  config = run.config
  cohort_size = config.cohorts.cohort_size or len(run.participating)
  traffic = communication.until_round(config, done.round_num)
  personal = config.method.personal(config)
  if personal and (column := personal.downloads_column):
    # Clients differ: models that all of them were sent.
    downloads = run.checked.history.total(column)
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


def write_row(run: BuiltRun, done: FinishedRound) -> None:
  """Writes the row of a round to both tables, and adds it to the history."""
  run.checked.log.log_round(done.round_num, done.metrics, done.timings)
  run.checked.history.add({'round': done.round_num, **done.metrics})


def send_row(done: FinishedRound, sinks: Sequence[RowSink]) -> None:
  """Sends the row of a round to TensorBoard and trackers."""
  # NumPy's scalars, too, are sent as Python's numbers.
  row = {
    name: value.item() if hasattr(value, 'item') else value
    for name, value in done.metrics.items()
  }
  row['round'] = done.round_num
  for sink in sinks:
    sink.log(row, done.write_line, done.timings)


class Checkpoints:
  """Saves the rounds that are due, and the last one that was recorded.

  Attributes:
    writer: Writes them.
  """

  def __init__(
    self,
    run: BuiltRun,
    states: ClientStatesPart | None,
    features: FeaturesPart | None,
  ):
    """Saves nothing yet; what is given is flushed before a checkpoint."""
    self._run = run
    self._kept = [part for part in (states, features) if part]
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

  def require_no_failure(self) -> None:
    """Saves the newest state where the last write failed, or raises OSError."""
    if self.writer.has_failed:
      self.save()

  def record(self, done: FinishedRound) -> None:
    """Notes a round that counts, and saves it where it is due."""
    # Without the state before it.
    self._recorded = dataclasses.replace(done, state_before=None)
    is_best = done.round_num in self._run.best_rounds
    if is_best or self._is_regular(done.round_num):
      self.save()
    if done.round_num == 0:
      # Waits: without a checkpoint a round could not be continued from.
      self.save()

  def save(self) -> None:
    """Saves the last recorded round, unless that is done.

    If the write before failed, this one has ended on return.
    """
    done = self._recorded
    # First: three states would be alive if one were still being written.
    has_failed = self.writer.wait() is not None
    if done is None or (done.round_num == self._saved_round and not has_failed):
      return
    state_type = self._run.process.initialize.type_signature.result
    tensors = model_state.to_tensors(done.state, state_type)
    contents = self._contents.copy()
    for part in self._kept:
      contents |= part.checkpoint_contents(done.round_num)
    if done.weights is not None:
      tensors |= model_state.trainable_tensors(done.weights)
      contents |= run_directory.contents_of_widths(
        self._run.config, done.weights
      )
    history, best = self._run.checked.history, self._run.best_rounds
    self.writer.save(
      done.round_num,
      tensors,
      contents,
      keep_rounds=history.good_and_finite(done.round_num) + best,
      superseded=history.scored.superseded if best else (),
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
