"""Client states of a run: read for a round, written with it, kept with it."""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from tff_fedfish.errors import FailedError
from tff_fedfish.printing import format_bytes
from tff_fedfish.run import checkpoints, kept_tensors, run_directory
from tff_fedfish.run.client_states import ClientStates, RoundStates
from tff_fedfish.run.cohort_data import TrainingClient
from tff_fedfish.run.kept_inputs import KeptInputs
from tff_fedfish.training.round_callbacks import (
  BuiltRun,
  FinishedRound,
  RoundCallback,
)

_HEADER_BYTES = 4096
"""Room for the names of a client's tensors, in its file and the manifest."""


class KeptStates(RoundCallback):
  """Gives clients what they kept, and keeps what a round's clients return.

  The states of a round count from its rename on, which comes before the row of
  metrics.csv; a run that is resumed discards those after its checkpoint. Where
  clients keep nothing this does nothing.

  Attributes:
    inputs: Given to the clients of a round; None: clients keep nothing.
  """

  def __init__(self, run: BuiltRun):
    """Discards what is newer than the run's position.

    Raises:
      OSError: If it cannot be removed.
    """
    self._run = run
    self._writer: RoundStates | None = None
    last = run.position.round_num if run.is_resumed else -1
    # Later ones were passed over as damaged.
    self._checkpoints = run.workdir / run_directory.CHECKPOINTS_NAME
    self._saved_rounds = [
      r for r in checkpoints.list_rounds(self._checkpoints) if r <= last
    ]
    self._states = self.inputs = None
    if run.config.kept_slots:
      self._states = ClientStates(run.workdir, last)
      self.inputs = KeptInputs(
        config=run.config,
        process=run.process,
        states=self._states,
        participating=run.participating,
      )
      if self._states.directory.exists():
        self._states.discard_after(last)

  def begin(
    self,
    round_num: int,
    clients: Sequence[TrainingClient],
    stack: contextlib.ExitStack,
  ) -> Callable[[int, Any], None] | None:
    """Starts to write a round; returns its `RoundOptions.on_client_output`.

    The stack, left at the end of the round, removes one that is given up.

    Raises:
      OSError: If nothing can be written.
    """
    if self._states is None:
      return None
    self._writer = stack.enter_context(self._states.begin(round_num))
    return kept_tensors.output_writer(
      self._writer, [client.client_id for client in clients]
    )

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    if self._states is not None:
      done.timings['client_state_bytes'] = self._states.num_bytes

  def record(self, done: FinishedRound) -> None:
    """Commits the states of the round, and removes superseded ones.

    Raises:
      OSError: If they cannot be written.
    """
    if self._writer is None:
      return
    self._writer.commit()
    self._writer = None
    self.collect()

  def collect(self) -> None:
    """Removes superseded states from which no run could continue.

    Raises:
      OSError: If they cannot be removed.
    """
    if self._states is None:
      return
    written = {*checkpoints.list_rounds(self._checkpoints)}
    # Two of them, as the newest may be damaged; and one that is being written.
    whole = [r for r in self._saved_rounds if r in written]
    self._states.collect({*whole[-2:], *self._saved_rounds[-1:]})

  def checkpoint_contents(self, round_num: int) -> dict[str, Any]:
    """Returns what the checkpoint of a round keeps, once states are on disk.

    Raises:
      OSError: If they cannot be flushed.
    """
    if self._states is None:
      return {}
    self._states.sync()
    self._saved_rounds.append(round_num)
    return {'client_states': self._states.summary(round_num)}

  def require_room(self) -> None:
    """Raises FailedError if the next round's states do not fit on the disk."""
    if self._states is None:
      return
    run = self._run
    num_clients = run.config.cohort_size or len(run.participating)
    slots = kept_tensors.slots_of(run.process)
    needed = num_clients * (kept_tensors.num_bytes(slots) + _HEADER_BYTES)
    free = shutil.disk_usage(run.workdir).free
    if needed > free:
      round_num = run.position.round_num
      raise FailedError(
        f'Round {round_num + 1} takes up to {format_bytes(needed)} of client '
        f'states, but {format_bytes(free)} are free in {str(run.workdir)!r}. '
        f'Free disk space; the same command continues after round {round_num}.'
      )
