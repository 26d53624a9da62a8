"""A run's directory: started once, continued only by the same run."""

import contextlib
import dataclasses
import hashlib
import json
import operator
import os
import pathlib
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.model_shapes import ModelShape
from tff_fedfish import files, locks
from tff_fedfish.config import load as config_loading
from tff_fedfish.config import names
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.run import (
  checkpoints,
  corpus_identity,
  starts,
  store,
  tables,
)
from tff_fedfish.run.corpus_identity import CorpusIdentity

CONFIG_NAME = config_loading.CONFIG_NAME
VOCABULARY_NAME = 'vocabulary'
MAY_CHANGE = names.MAY_CHANGE

_VOCABULARY_KEY = 'vocabulary_fingerprint'
_SETTINGS_KEY = 'settings'
_WIDTHS_KEY = 'model_widths'

_WRITTEN_NAMES = (
  CONFIG_NAME,
  corpus_identity.CORPUS_NAME,
  VOCABULARY_NAME,
  starts.STARTS_NAME,
  'metrics.csv',
  'timings.csv',
  'privacy.csv',
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


def checkpoint_to_resume(
  config: TrainConfig, workdir: str | os.PathLike
) -> checkpoints.Checkpoint | None:
  """Checks that the run of a config may start or continue in a directory.

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
  different = config_loading.differences(kept, config)
  if changed := [name for name in different if name not in MAY_CHANGE]:
    raise UserError(
      f'`--workdir` {str(workdir)!r} holds a run with another config: '
      f'{_shown(changed, kept, config)}. To continue with its own settings, '
      'leave out --config and overrides of these. For a new run, name another '
      '--workdir.'
    )
  directory, metrics = workdir / store.CHECKPOINTS, workdir / 'metrics.csv'
  logged_rounds = set()
  if metrics.exists() or checkpoints.list_rounds(directory):
    logged_rounds = tables.logged_rounds(metrics)
  path = checkpoints.latest_checkpoint(directory, logged_rounds=logged_rounds)
  if path is None:
    # The checkpoint of round 0 is whole before round 1 begins.
    if any(logged_rounds):
      raise UserError(
        f'`--workdir` {str(workdir)!r} holds a run that has done round '
        f'{max(logged_rounds)}, but no checkpoint to continue from. Restore '
        f'{str(directory)!r}, or name another --workdir.'
      )
    return None
  checkpoint = checkpoints.load_checkpoint(path, None, verify=False)
  if checkpoint.round_num > config.training.num_rounds:
    raise UserError(
      f'`--config.training.num_rounds` is {config.training.num_rounds}, but '
      f'the run in {str(workdir)!r} has done {checkpoint.round_num} rounds. '
      'Raise it, or name another --workdir.'
    )
  return checkpoint


@contextlib.contextmanager
def lock(workdir: str | os.PathLike) -> Iterator[None]:
  """Keeps other processes, on any host, out of a run's directory.

  The directory is created if it does not exist. If it holds nothing but the
  lock file at the end, both are removed again.

  Raises:
    UserError: If another process holds it; names process and host.
    OSError: If it cannot be created.
  """
  path = pathlib.Path(workdir) / files.LOCK_NAME
  missing = [parent for parent in path.parents if not parent.exists()]
  while (file := _open_locked(path)) is None:
    pass
  with file:
    try:
      with files.naming(path):
        file.truncate(0)
        file.write(f'process {os.getpid()} on {socket.gethostname()}'.encode())
      for directory in missing:
        files.sync(directory.parent)
      yield
    finally:
      file.truncate(0)
      if os.listdir(path.parent) == [path.name]:
        path.unlink()
        with contextlib.suppress(OSError):
          for directory in missing:
            directory.rmdir()


def start(
  config: TrainConfig,
  workdir: str | os.PathLike,
  tokenizer: Tokenizer | None,
  corpus: CorpusIdentity,
  read: Mapping[str, pathlib.Path | None],
) -> None:
  """Writes what a run keeps beside its results.

  The config is written first: it marks the directory as a run's. The vocabulary
  (None with images) is saved, so that evaluation needs no other file; a run
  that continues keeps its own. See `starts.add` for `read`.
  """
  workdir = pathlib.Path(workdir)
  for name in _WRITTEN_NAMES:
    # Of a process that was killed while it wrote; not an editor's `.NAME.swp`.
    for leftover in workdir.glob(f'.{name}.????????'):
      shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
  config_loading.write_config(workdir / CONFIG_NAME, config)
  corpus_identity.write_identity(workdir, corpus)
  vocabulary = workdir / VOCABULARY_NAME
  if read['checkpoint'] is None and vocabulary.exists():
    # Of a start that was killed before it kept anything else.
    shutil.rmtree(vocabulary)
  if tokenizer is not None and not vocabulary.exists():
    tokenizer.save(vocabulary)
  starts.add(workdir, config.resolved.num_threads, read)


def checkpoint_contents(
  config: TrainConfig,
  corpus_fingerprint: str | None,
  tokenizer: Tokenizer | None,
) -> dict[str, Any]:
  """Returns what a checkpoint of a run keeps beside its tensors."""
  return {
    'algorithm': config.algorithm.name,
    'corpus_fingerprint': corpus_fingerprint,
    _VOCABULARY_KEY: vocabulary_fingerprint(tokenizer),
    _SETTINGS_KEY: settings_of_numbers(config),
  }


def contents_of_widths(
  config: TrainConfig, weights: Sequence[Any]
) -> dict[str, list[int]]:
  """Returns what a checkpoint keeps of weights that a solver made wider."""
  return {_WIDTHS_KEY: list(config.model_shape().widths_of(weights))}


def model_shape(
  config: TrainConfig, checkpoint: checkpoints.Checkpoint
) -> ModelShape:
  """Returns the shape of the model in a checkpoint.

  It is that of the run's config, unless a solver made hidden layers wider.
  """
  shape, widths = config.model_shape(), checkpoint.contents.get(_WIDTHS_KEY)
  if widths is None:
    return shape
  return dataclasses.replace(shape, widths=tuple(widths))


def settings_of_numbers(config: TrainConfig) -> dict[str, Any]:
  """Returns the settings that fix a run's numbers, by 'section.setting'.

  Without the model that it started from: weights of its own are stored.
  """
  return {
    f'{section}.{name}': value
    for section, values in dataclasses.asdict(config).items()
    for name, value in values.items()
    if f'{section}.{name}' not in MAY_CHANGE | {'training.start_from'}
  }


def vocabulary_fingerprint(tokenizer: Tokenizer | None) -> str | None:
  """Returns the SHA-256 of a vocabulary and how it is read; None for None."""
  names = ('kind', 'sha256', 'lower_case', 'end_of_text_id')
  if tokenizer is None:
    return None
  return _sha256({name: getattr(tokenizer, name) for name in names})


def require_same_run(
  checkpoint: checkpoints.Checkpoint,
  config: TrainConfig,
  tokenizer: Tokenizer | None,
  vocabulary: str | os.PathLike | None,
) -> None:
  """Raises UserError unless a checkpoint was made with these inputs."""
  path, found = checkpoint.path, checkpoint.contents
  if found.get(_VOCABULARY_KEY) != vocabulary_fingerprint(tokenizer):
    raise UserError(
      f'The checkpoint {str(path)!r} was made with another vocabulary '
      f'than {str(vocabulary)!r} holds. Restore it, or name that of the run as '
      '`--config.data.vocabulary`.'
    )
  # Another version may have added settings, or removed some.
  made_with = found.get(_SETTINGS_KEY) or {}
  different = [
    f'{name} {made_with[name]!r}, not {value!r}'
    for name, value in settings_of_numbers(config).items()
    if made_with.get(name, value) != value
  ]
  if different or not made_with:
    raise UserError(
      f'The checkpoint {str(path)!r} was made with other settings than '
      f'{str(path.parent.parent / CONFIG_NAME)!r} holds: '
      f'{", ".join(different) or "with none"}. Restore that file.'
    )


def _config_or_none(run_directory):
  path = run_directory / CONFIG_NAME
  with files.explained(path, 'the config of a run', 'Restore the file.'):
    try:
      value = files.parse_json(path.read_bytes())
    except FileNotFoundError:
      return None
  return config_loading.from_json_dict(value, str(path))


def _shown(names_of_settings, kept, config):
  """Returns "seeds.model_seed 7 there, 1 here", for at most three settings."""
  shown = [
    '{} {!r} there, {!r} here'.format(
      name, *(operator.attrgetter(name)(each) for each in (kept, config))
    )
    for name in names_of_settings[:3]
  ]
  if more := len(names_of_settings) - len(shown):
    shown.append(f'{more} more')
  return '; '.join(shown)


def _open_locked(path):
  """Returns a lock file that this process holds; None: it was just removed."""
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, 'ab+', buffering=0)
  except (FileExistsError, FileNotFoundError):
    if os.path.lexists(path.parent) and not path.parent.is_dir():
      raise
    return None
  with contextlib.ExitStack() as stack:
    stack.callback(file.close)
    if not locks.try_lock(file):
      file.seek(0)
      owner = file.read().decode(errors='replace') or 'another process'
      raise UserError(
        f'`--workdir` {str(path.parent)!r} is in use by {owner}. Wait until it '
        'ends, or name another directory.'
      )
    with contextlib.suppress(FileNotFoundError):
      if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        stack.pop_all()
        return file
  return None


def _sha256(values):
  text = json.dumps(values, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()
