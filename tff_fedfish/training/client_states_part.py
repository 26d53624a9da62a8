"""Client states of a run: read for a round, written with it, kept with it."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tff_fedfish.run import client_inputs, store
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.cohorts import TrainingClient
from tff_fedfish.run.store import RoundStore
from tff_fedfish.training.parts import BuiltRun

_HEADER_BYTES = 4096
"""Room for the names of a client's tensors, in its file and the manifest."""


class ClientStatesPart:
  """Gives clients what they kept, and keeps what a round's clients return.

  The states of a round count from their rename on, which comes before the row
  of metrics.csv; a run that is resumed discards those after its checkpoint. An
  OSError says what cannot be written or removed.

  Attributes:
    states: The states on disk; `commit` makes those of the round count.
    inputs: Given to the clients of a round.
  """

  def __init__(self, run: BuiltRun):
    """Discards what is newer than the run's position."""
    self._run = run
    last = run.position.round_num if run.is_resumed else -1
    self._checkpoints = RoundStore(run.workdir / store.CHECKPOINTS)
    # Later ones were passed over as damaged.
    self._saved_rounds = [r for r in self._checkpoints.rounds() if r <= last]
    self.states = ClientStates(run.workdir, last)
    self.states.discard_after(last)
    self.inputs = ClientInputs(
      config=run.config,
      process=run.process,
      states=self.states,
      participating=run.participating,
    )

  def require_room(self, round_num: int) -> None:
    """Removes superseded states, and checks that there is room for new ones.

    Not as soon as they are superseded: if the row of that round cannot be
    written, the run saves the round before it, which needs them.

    Raises:
      FailedError: If the states of the round do not fit on the disk.
    """
    self.collect()
    run = self._run
    num_clients = run.config.cohort_size or len(run.participating)
    client_bytes = client_inputs.num_bytes(self.inputs.slots) + _HEADER_BYTES
    store.require_room(
      run.workdir, num_clients * client_bytes, 'client states', round_num
    )

  def on_output(
    self,
    round_num: int,
    clients: Sequence[TrainingClient],
    stack: contextlib.ExitStack,
  ) -> Callable[[int, Any], None]:
    """Starts to write a round; returns its `RoundOptions.on_client_output`.

    The stack, left at the end of the round, removes one that is given up.
    """
    writer = stack.enter_context(self.states.begin(round_num))
    return client_inputs.output_writer(writer, [c.client_id for c in clients])

  def collect(self) -> None:
    """Removes superseded states from which no run could continue."""
    written = {*self._checkpoints.rounds()}
    whole = sorted(written.intersection(self._saved_rounds))
    # Two of them, as the newest may be damaged; one that is being written; the
    # last good one of a run that diverges; and the best.
    good = self._run.checked.history.good_and_finite() + self._run.best_rounds
    self.states.collect({*whole[-2:], *self._saved_rounds[-1:], *good})

  def checkpoint_contents(self, round_num: int) -> dict[str, Any]:
    """Returns what the checkpoint of a round keeps, once states are on disk."""
    self.states.sync()
    self._saved_rounds.append(round_num)
    return {store.CLIENT_STATES: self.states.summary(round_num)}
