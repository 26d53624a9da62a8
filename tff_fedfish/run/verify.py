"""Checks the files that a run would continue from, to the last byte."""

import dataclasses
import os
import pathlib
from collections.abc import Callable

from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, feature_files, run_directory
from tff_fedfish.run.client_states import ClientStates


@dataclasses.dataclass(kw_only=True)
class Verified:
  """Amounts that were read and found right."""

  num_checkpoints: int = 0
  num_client_states: int = 0
  num_bytes: int = 0


def num_steps(directory: str | os.PathLike) -> int:
  """Returns how often `verify_run` calls `on_step`."""
  path = pathlib.Path(directory) / run_directory.CHECKPOINTS_NAME
  states = ClientStates(directory)
  rounds = checkpoints.list_rounds(path)
  num_clients = states.summary(rounds[-1])['num_clients'] if rounds else 0
  num_features = len(list(path.parent.glob('features/*/*.safetensors')))
  return len(rounds) + num_clients + num_features


def verify_run(
  directory: str | os.PathLike, *, on_step: Callable[[], None] = lambda: None
) -> Verified:
  """Reads all checkpoints of a run, and what its clients keep at the last.

  Calls `on_step` after each checkpoint and each client.

  Raises:
    UserError: At the first file that is missing or not as it was written, named
      with its round and client; or if there is no checkpoint.
  """
  config = run_directory.read_config(directory)
  path = pathlib.Path(directory) / run_directory.CHECKPOINTS_NAME
  rounds, verified = checkpoints.list_rounds(path), Verified()
  if not rounds:
    raise UserError(
      f'{str(directory)!r} must hold checkpoints to be verified, but has none. '
      'Name a run that has started.'
    )
  # From the newest on, from which the run would continue.
  for round_num in reversed(rounds):
    found = checkpoints.load_checkpoint(
      checkpoints.path_of(path, round_num), None
    )
    verified.num_checkpoints += 1
    state = found.path / checkpoints.STATE_FILE
    verified.num_bytes += state.stat().st_size
    on_step()
    if round_num < rounds[-1]:
      continue
    for num_bytes in feature_files.verify(config, found):
      verified.num_client_states += 1
      verified.num_bytes += num_bytes
      on_step()
    if config.in_round(round_num).kept_slots:
      states = ClientStates(directory, round_num)
      summary = found.contents.get('client_states')
      states.require_as_after(round_num, summary)
      for num_bytes in states.verify(round_num):
        verified.num_client_states += 1
        verified.num_bytes += num_bytes
        on_step()
  return verified
