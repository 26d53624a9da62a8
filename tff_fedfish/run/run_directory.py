"""A run's directory: started once, continued only by the same run."""

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Iterator

from tff_fedfish import files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.environment import environment_facts
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, corpus_identity, metrics_files
from tff_fedfish.run.corpus_identity import CorpusIdentity
from tff_fedfish.run.fingerprints import MAY_CHANGE

CONFIG_NAME = 'config.json'
CHECKPOINTS_NAME = 'checkpoints'
VOCABULARY_NAME = 'vocabulary'

_WRITTEN_NAMES = (
  CONFIG_NAME,
  corpus_identity.CORPUS_NAME,
  VOCABULARY_NAME,
  'environment.json',
  'metrics.csv',
  'timings.csv',
)


def read_config(run_directory: str | os.PathLike) -> TrainConfig:
  """Reads the config of a run.

  Raises:
    UserError: If the directory is no run, or its config.json is damaged.
  """
  config = _config_or_none(pathlib.Path(run_directory))
  if config is None:
    raise UserError(
      f'{str(run_directory)!r} must be the directory of a run, but '
      f'{CONFIG_NAME} is not in it. Name a directory that `fedfish train` '
      'wrote.'
    )
  return config


def _config_or_none(run_directory):
  path = run_directory / CONFIG_NAME
  try:
    value = files.parse_json(path.read_text(encoding='utf-8'))
  except FileNotFoundError:
    return None
  except (ValueError, OSError) as error:
    raise UserError(
      f'{str(path)!r} must hold the config of a run, but cannot be read '
      f'({error}). Restore the file.'
    ) from error
  return config_loading.from_json_dict(value, str(path))


def checkpoint_to_resume(
  config: TrainConfig, workdir: str | os.PathLike
) -> checkpoints.Checkpoint | None:
  """Checks that a run may start or continue in a directory.

  Args:
    config: The config of the run that is to come.
    workdir: Its directory, as typed.

  Returns:
    The checkpoint to continue from, without tensors; None: the run starts.

  Raises:
    UserError: If the directory cannot be used, or holds a run of another
      config.
  """
  workdir = files.require_usable_output(
    workdir, '--workdir', marker=CONFIG_NAME
  )
  kept = _config_or_none(workdir)
  if kept is None:
    return None
  found = config_loading.differences(kept, config)
  if changed := [name for name in found if name not in MAY_CHANGE]:
    raise UserError(
      f'`--workdir` {str(workdir)!r} holds a run with another config, '
      f'different in {", ".join(changed)}. Name another directory for a new '
      'run, or take back the changes to continue that one.'
    )
  directory = workdir / CHECKPOINTS_NAME
  if not checkpoints.list_rounds(directory):
    return None
  path = checkpoints.latest_checkpoint(
    directory,
    logged_rounds=metrics_files.logged_rounds(workdir / 'metrics.csv'),
  )
  found = checkpoints.load_checkpoint(path, (), verify=False)
  if found.round_num > config.training.num_rounds:
    raise UserError(
      f'`--config.training.num_rounds` is {config.training.num_rounds}, but '
      f'the run in {str(workdir)!r} has done {found.round_num} rounds. Raise '
      'it, or name another --workdir.'
    )
  return found


@contextlib.contextmanager
def lock(workdir: str | os.PathLike) -> Iterator[None]:
  """Keeps other processes out of a run while this one prepares and writes it.

  Args:
    workdir: The run's directory. It is created if it does not exist, so that
      two processes that start at once meet at the same lock; one that is still
      empty at the end is removed again, unless the process is killed.

  Raises:
    UserError: If another process holds it.
    OSError: If it cannot be created.
  """
  with contextlib.ExitStack() as stack:
    while not _try_lock(pathlib.Path(workdir), stack):
      pass
    yield


def _try_lock(workdir, stack):
  """Locks what stands at `workdir`; False: it went away meanwhile."""
  with contextlib.suppress(FileNotFoundError):
    created = _create(workdir)
    descriptor = os.open(workdir, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise UserError(
        f'`--workdir` {str(workdir)!r} is in use by another `fedfish train`. '
        'Wait until it ends, or name another directory.'
      ) from error
    # Its last owner may have removed it before letting go.
    if os.path.samestat(os.fstat(descriptor), os.stat(workdir)):
      stack.callback(_remove_empty, created)
      return True
  return False


def _create(workdir):
  """Creates a directory; returns what was created, the innermost first."""
  missing = [path for path in (workdir, *workdir.parents) if not path.exists()]
  try:
    workdir.mkdir(parents=True, exist_ok=True)
  except FileExistsError as error:
    if os.path.lexists(workdir) and not workdir.is_dir():
      raise
    # Removed between pathlib's attempt and its look at what is in the way.
    raise FileNotFoundError(workdir) from error
  return missing


def _remove_empty(directories):
  with contextlib.suppress(OSError):
    for directory in directories:
      directory.rmdir()


def start(
  config: TrainConfig,
  workdir: str | os.PathLike,
  tokenizer: Tokenizer | None,
  corpus: CorpusIdentity,
) -> None:
  """Writes what a run keeps beside its results.

  Args:
    config: The run's config. Written first: it marks the directory as a run's.
    workdir: Exists, checked by `checkpoint_to_resume`.
    tokenizer: Saved once, so that evaluation needs no other file. None where
      the corpus holds images.
    corpus: Identity of the corpus that the run trains on.
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
  corpus_identity.write_identity(workdir, corpus)
  if tokenizer is not None and not (workdir / VOCABULARY_NAME).exists():
    with files.write_directory_atomically(
      workdir / VOCABULARY_NAME
    ) as temporary:
      tokenizer.save(temporary)
  files.write_json(workdir / 'environment.json', environment_facts())
