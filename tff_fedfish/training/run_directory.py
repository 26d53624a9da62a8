"""A run's directory: started once, continued only by the same run."""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Iterator

from tff_fedfish import files
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.environment import environment_facts
from tff_fedfish.errors import UserError
from tff_fedfish.training import checkpoints, config_loading
from tff_fedfish.training.config import TrainConfig

CONFIG_NAME = 'config.json'
CHECKPOINTS_NAME = 'checkpoints'
VOCABULARY_NAME = 'vocabulary'

_WRITTEN_NAMES = (
  CONFIG_NAME,
  VOCABULARY_NAME,
  'environment.json',
  'metrics.csv',
  'timings.csv',
)

# What may differ when a run is continued. Corpus and vocabulary may have moved;
# that they are still the same is checked by their content.
_MAY_CHANGE = frozenset(
  {
    'training.num_rounds',
    'training.max_non_finite_rounds',
    'checkpoints.every_num_rounds',
    'checkpoints.keep_last',
    'checkpoints.keep_every_num_rounds',
    'engine.num_workers',
    'engine.gpus_per_worker',
    'engine.ray_address',
    'engine.quorum',
    'data.directory',
    'data.vocabulary',
  }
)


def read_config(run_directory: str | os.PathLike) -> TrainConfig:
  """Reads the config of a run.

  Raises:
    UserError: If the directory is no run, or its config.json is damaged.
  """
  path = pathlib.Path(run_directory) / CONFIG_NAME
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
  except FileNotFoundError as error:
    raise UserError(
      f'{str(run_directory)!r} must be the directory of a run, but '
      f'{CONFIG_NAME} is not in it. Name a directory that `fedfish train` '
      'wrote.'
    ) from error
  except (ValueError, OSError) as error:
    raise UserError(
      f'{str(path)!r} must hold the config of a run, but cannot be read '
      f'({error}). Restore the file.'
    ) from error
  return config_loading.from_json_dict(value, str(path))


def checkpoint_to_resume(
  config: TrainConfig, workdir: str | os.PathLike
) -> pathlib.Path | None:
  """Checks that a run may start or continue in a directory.

  Args:
    config: The config of the run that is to come.
    workdir: Its directory, as typed.

  Returns:
    The checkpoint to continue from; None: the run starts.

  Raises:
    UserError: If the directory cannot be used, or holds a run of another
      config.
  """
  workdir = files.require_usable_output(
    workdir, '--workdir', marker=CONFIG_NAME
  )
  if not (workdir / CONFIG_NAME).exists():
    return None
  changed = [
    name
    for name in config_loading.differences(read_config(workdir), config)
    if name not in _MAY_CHANGE
  ]
  if changed:
    raise UserError(
      f'`--workdir` {str(workdir)!r} holds a run with another config, '
      f'different in {", ".join(changed)}. Name another directory for a new '
      'run, or take back the changes to continue that one.'
    )
  path = checkpoints.latest_checkpoint(workdir / CHECKPOINTS_NAME)
  if path is not None:
    found = checkpoints.load_checkpoint(path, (), verify=False).round_num
    if found > config.training.num_rounds:
      raise UserError(
        f'`--config.training.num_rounds` is {config.training.num_rounds}, but '
        f'the run in {str(workdir)!r} has done {found} rounds. Raise it, or '
        'name another --workdir.'
      )
  return path


@contextlib.contextmanager
def lock(workdir: str | os.PathLike) -> Iterator[None]:
  """Keeps other processes out of a run while this one writes it.

  Args:
    workdir: The run's directory; must exist.

  Raises:
    UserError: If another process holds it.
  """
  descriptor = os.open(workdir, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise UserError(
        f'`--workdir` {str(workdir)!r} is in use by another `fedfish train`. '
        'Wait until it ends, or name another directory.'
      ) from error
    yield
  finally:
    os.close(descriptor)


def start(
  config: TrainConfig,
  workdir: str | os.PathLike,
  tokenizer: Tokenizer | None,
) -> pathlib.Path:
  """Writes what a run keeps beside its results.

  Args:
    config: The run's config. Written first: it marks the directory as a run's.
    workdir: Exists, checked by `checkpoint_to_resume`.
    tokenizer: Saved once, so that evaluation needs no other file. None where
      the corpus holds images.

  Returns:
    The directory.
  """
  workdir = pathlib.Path(workdir)
  for name in _WRITTEN_NAMES:
    # Of a process that was killed while it wrote.
    for leftover in workdir.glob(f'.{name}.*'):
      if leftover.is_dir():
        shutil.rmtree(leftover)
      else:
        leftover.unlink()
  files.write_json(workdir / CONFIG_NAME, config_loading.to_json_dict(config))
  if tokenizer is not None and not (workdir / VOCABULARY_NAME).exists():
    with files.write_directory_atomically(
      workdir / VOCABULARY_NAME
    ) as temporary:
      tokenizer.save(temporary)
  files.write_json(workdir / 'environment.json', environment_facts())
  return workdir
