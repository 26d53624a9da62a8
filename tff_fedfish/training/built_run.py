"""A run's learning process, state and data, built from what was checked."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow_federated as tff

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.evaluation import client_evaluator
from tff_fedfish.evaluation.evaluation_clients import ClientSample
from tff_fedfish.progress import Stages
from tff_fedfish.run import (
  checkpoints,
  cohort_data,
  fingerprints,
  learning_setup,
  run_directory,
  run_inputs,
  server_state,
)
from tff_fedfish.run.corpus_identity import CorpusIdentity
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
  context: InProcessContext
  process: tff.learning.templates.LearningProcess
  evaluator: client_evaluator.ClientEvaluator
  position: Position
  """The only part that rounds change: no earlier state is kept alive."""
  is_resumed: bool
  """Whether the run continues after a checkpoint."""
  participating: Sequence[bytes]
  """Clients that may be drawn."""
  client_rows: ClientRows
  """Their sequences or images, opened in this process."""
  source: cohort_data.Source
  """Their sequences or images, where rounds find them."""
  sample: ClientSample
  """The held-out clients that are scored."""
  tokenizer: Tokenizer | None
  corpus: CorpusIdentity
  contents: Mapping[str, Any]
  """Fingerprints that every checkpoint holds."""

  @property
  def state_type(self) -> tff.Type:
    """The type of the state."""
    return self.process.initialize.type_signature.result

  def cohort(self, round_num: int) -> list[cohort_data.TrainingClient]:
    """Returns the clients of a round."""
    return cohort_data.cohort(
      self.config, self.participating, self.source, round_num
    )


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
  inputs = checked.inputs
  client_rows = run_inputs.training_rows(
    config, inputs.corpus, inputs.tokenizer
  )
  context = set_in_process_context()
  with stages('building the model and its learning process'):
    process = learning_setup.build_learning_process(config)
    if config.evaluation.barrier_every_num_rounds:
      learning_setup.require_trained_models(config, process)
    evaluator = client_evaluator.build_evaluator(config)
  is_resumed = checked.checkpoint is not None
  with stages('restoring' if is_resumed else 'drawing the weights'):
    position = _first_position(process, checked.checkpoint)
  return BuiltRun(
    config=config,
    workdir=workdir,
    context=context,
    process=process,
    evaluator=evaluator,
    position=position,
    is_resumed=is_resumed,
    participating=run_inputs.training_clients(config, inputs.split),
    client_rows=client_rows,
    source=_source(config, workdir, client_rows),
    sample=checked.sample,
    tokenizer=inputs.tokenizer,
    corpus=inputs.identity,
    contents=fingerprints.contents(
      config, inputs.identity.fingerprint, inputs.tokenizer
    ),
  )


def _first_position(process, checkpoint_path):
  """Returns the round and state to continue from, or round 0's."""
  if checkpoint_path is None:
    return Position(0, process.initialize())
  checkpoint = checkpoints.load_checkpoint(checkpoint_path, verify=False)
  state = server_state.from_tensors(
    checkpoint.tensors,
    process.initialize.type_signature.result,
    checkpoint_path,
  )
  return Position(checkpoint.round_num, state)


def _source(config, workdir, client_rows):
  if config.engine.kind == 'in_process':
    return cohort_data.InMemorySource(client_rows)
  directory = str(pathlib.Path(config.data.directory).resolve())
  if config.data.holds_images:
    return cohort_data.ImageCorpusSource(
      corpus=config.data.corpus,
      directory=directory,
      **run_inputs.image_options(config),
    )
  return cohort_data.TextCorpusSource(
    corpus=directory,
    vocabulary=str((workdir / run_directory.VOCABULARY_NAME).resolve()),
    sequence_length=config.data.sequence_length,
    drop_short_block=config.data.drop_short_block,
    merge=run_inputs.merge_of(config),
  )
