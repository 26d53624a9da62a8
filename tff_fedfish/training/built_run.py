"""A run's learning process, state and data, built from what was checked."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import tensorflow_federated as tff

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation import client_evaluator
from tff_fedfish.progress import Stages
from tff_fedfish.run import (
  checkpoints,
  learning_setup,
  run_inputs,
  server_state,
)
from tff_fedfish.runtime.in_process_context import (
  InProcessContext,
  set_in_process_context,
)
from tff_fedfish.training.run_checks import CheckedRun


@dataclasses.dataclass
class Position:
  """Last round that is done, and the process's state after it."""

  round_num: int
  state: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltRun:
  """Everything that rounds need; nothing is written yet."""

  config: TrainConfig
  workdir: pathlib.Path
  checked: CheckedRun
  context: InProcessContext
  process: tff.learning.templates.LearningProcess
  evaluator: client_evaluator.ClientEvaluator
  position: Position
  """The only part that rounds change: no earlier state is kept alive."""
  participating: Sequence[bytes]
  """Clients that may be drawn."""
  client_rows: ClientRows
  """Their sequences or images, opened in this process."""

  @property
  def is_resumed(self) -> bool:
    """Whether the run continues after a checkpoint."""
    return self.checked.checkpoint is not None

  @property
  def state_type(self) -> tff.Type:
    """The type of the state."""
    return self.process.initialize.type_signature.result

  def is_due(self, round_num: int, every_num_rounds: int) -> bool:
    """Says whether round 0, the last one or one of every N is reached."""
    if round_num in (0, self.config.training.num_rounds):
      return True
    return bool(every_num_rounds) and round_num % every_num_rounds == 0


def build_run(
  config: TrainConfig,
  workdir: pathlib.Path,
  checked: CheckedRun,
  stages: Stages,
) -> BuiltRun:
  """Builds the process and restores or draws its state.

  Args:
    config: The run's config.
    workdir: Its directory.
    checked: Its opened inputs.
    stages: Shows what takes long.

  Raises:
    UserError: If the checkpoint does not fit the process.
  """
  client_rows = run_inputs.training_rows(
    config, checked.corpus, checked.tokenizer
  )
  context = set_in_process_context()
  with stages('building the model and its learning process'):
    process = learning_setup.build_learning_process(config)
    if config.evaluation.barrier_every_num_rounds:
      learning_setup.require_trained_models(config, process)
    evaluator = client_evaluator.build_evaluator(config)
  if checked.checkpoint is None:
    with stages('drawing the weights'):
      position = Position(0, process.initialize())
  else:
    with stages('restoring'):
      loaded = checkpoints.load_checkpoint(checked.checkpoint, verify=False)
      state_type = process.initialize.type_signature.result
      state = server_state.from_tensors(
        loaded.tensors, state_type, checked.checkpoint
      )
      position = Position(loaded.round_num, state)
  return BuiltRun(
    config=config,
    workdir=workdir,
    checked=checked,
    context=context,
    process=process,
    evaluator=evaluator,
    position=position,
    participating=run_inputs.training_clients(config, checked.split),
    client_rows=client_rows,
  )
