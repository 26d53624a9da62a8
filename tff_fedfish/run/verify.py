"""Checks the files that a run would continue from, to the last byte."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable

from tff_fedfish.errors import UserError
from tff_fedfish.run import (
  checkpoints,
  client_data,
  features,
  run_directory,
  store,
)
from tff_fedfish.run.client_state import ClientStates


@dataclasses.dataclass(kw_only=True)
class Verified:
  """Amounts that were read and found right."""

  num_checkpoints: int = 0
  num_client_states: int = 0
  num_bytes: int = 0


def num_steps(directory: str | os.PathLike) -> int:
  """Returns how often `verify_run` calls `on_step`."""
  run = pathlib.Path(directory)
  rounds = checkpoints.list_rounds(run / store.CHECKPOINTS)
  num_clients = 0
  if rounds:
    num_clients = ClientStates(run).summary(rounds[-1])['num_clients']
  num_features = len(list(run.glob(f'{store.FEATURES}/*/*.safetensors')))
  return len(rounds) + num_clients + num_features


def verify_run(
  directory: str | os.PathLike, *, on_step: Callable[[], None] = lambda: None
) -> Verified:
  """Reads all checkpoints of a run, and what its clients keep at the last.

  Config and vocabulary must be those that the checkpoints were made with.
  Calls `on_step` after each checkpoint and each client.

  Raises:
    UserError: At the first file that is missing or not as it was written; or if
      there is no checkpoint.
  """
  config = run_directory.read_config(directory)
  path = pathlib.Path(directory) / store.CHECKPOINTS
  rounds, verified = checkpoints.list_rounds(path), Verified()
  vocabulary = path.parent / run_directory.VOCABULARY_NAME
  if not rounds:
    raise UserError(
      f'{str(directory)!r} must hold checkpoints to be verified, but has none. '
      'Name a run that has started.'
    )
  tokenizer = client_data.open_tokenizer(config, vocabulary)
  # From the newest on, from which the run would continue.
  for round_num in reversed(rounds):
    checkpoint = checkpoints.load_checkpoint(
      checkpoints.path_of(path, round_num), None
    )
    run_directory.require_same_run(checkpoint, config, tokenizer, vocabulary)
    state = checkpoint.path / checkpoints.STATE_FILE
    verified.num_checkpoints += 1
    verified.num_bytes += state.stat().st_size
    on_step()
    if round_num < rounds[-1]:
      continue
    sizes = [features.verify(config, checkpoint)]
    if config.in_round(round_num).kept_models:
      states = ClientStates(directory, round_num)
      states.require_as_after(
        round_num, checkpoint.contents.get(store.CLIENT_STATES)
      )
      sizes.append(states.verify(round_num))
    for num_bytes in itertools.chain(*sizes):
      verified.num_client_states += 1
      verified.num_bytes += num_bytes
      on_step()
  return verified
