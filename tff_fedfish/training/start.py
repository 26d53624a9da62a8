"""Builds what rounds need: process, state and data of a run or a phase."""

import dataclasses
import pathlib
from collections.abc import Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.evaluation import client_evaluator
from tff_fedfish.methods.method import load
from tff_fedfish.progress import Stages
from tff_fedfish.run import build, checkpoints, client_data, model_state
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.training.check import CheckedRun
from tff_fedfish.training.parts import BuiltRun, Position


def build_run(
  config: TrainConfig,
  workdir: pathlib.Path,
  checked: CheckedRun,
  stages: Stages,
) -> BuiltRun:
  """Builds the process of a run's position, and restores or draws its state.

  Raises:
    UserError: If the checkpoint does not fit the process.
  """
  rows = client_data.training_rows(config, checked.corpus, checked.tokenizer)
  config = config.in_round(checked.round_num)
  set_in_process_context()
  participating = client_data.training_clients(config, checked.split)
  process, evaluator = _build_process(config, participating, stages)
  if checked.checkpoint is None:
    with stages('drawing the weights'):
      state = process.initialize()
      if checked.start is not None:
        state = build.with_start_weights(process, state, config, checked.start)
  else:
    with stages('restoring'):
      loaded = checkpoints.load_checkpoint(checked.checkpoint, verify=False)
      state_type = process.initialize.type_signature.result
      state = model_state.from_tensors(
        loaded.tensors, state_type, checked.checkpoint
      )
  return BuiltRun(
    config=config,
    workdir=workdir,
    checked=checked,
    process=process,
    evaluator=evaluator,
    position=Position(checked.round_num, state),
    participating=participating,
    client_rows=rows,
    is_resumed=checked.checkpoint is not None,
  )


def has_next_phase(run: BuiltRun) -> bool:
  """Says whether a run goes on, in another phase."""
  done, phase = run.position.round_num, run.config.phase
  num_rounds = run.config.training.num_rounds
  return phase is not None and done == phase.last_round < num_rounds


def next_phase(run: BuiltRun, stages: Stages) -> BuiltRun:
  """Builds the phase after a run's last round, and the state it begins with.

  Nothing is written: it is built again in a run that is resumed there.
  """
  done = run.position.round_num
  config = run.config.in_round(done + 1)
  process, evaluator = _build_process(config, run.participating, stages)
  with stages(f'beginning with phase {config.phase.name!r}'):
    begin = load(config.phase.begin)
    state = begin(config, process, run.position.state)
  return dataclasses.replace(
    run,
    config=config,
    process=process,
    evaluator=evaluator,
    position=Position(done, state),
    is_resumed=True,
  )


def _build_process(config, participating: Sequence[bytes], stages):
  """Returns the learning process of a phase, and what scores its model."""
  with stages('building the model and its learning process'):
    process = build.build_learning_process(
      config, num_clients=len(participating)
    )
    return process, client_evaluator.build_evaluator(config)
