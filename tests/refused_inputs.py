"""Parts that cases of refused inputs share: copies, and ways to damage them.

The cases are in `refused_settings`, `refused_methods`, `refused_runs`,
`refused_images` and `refused_directories`.
"""

import contextlib
import functools
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import NamedTuple

import small_runs


class Place:
  """Place where one case prepares its input; copies are made on first use.

  Attributes:
    directory: An empty directory.
    workdir: What the run is given as `--workdir`.
    stack: Ends when the dry run has ended.
  """

  def __init__(self, directory, corpus, vocabulary, run, stack):
    self.directory = directory
    self.workdir = directory / 'new'
    self.stack: contextlib.ExitStack = stack
    self._sources = dict(corpus=corpus, vocabulary=vocabulary, run=run)

  @functools.cached_property
  def corpus(self) -> pathlib.Path:
    """A grouped corpus of 12 clients."""
    return self._copy('corpus')

  @functools.cached_property
  def vocabulary(self) -> pathlib.Path:
    """A vocabulary of 256 pieces."""
    return self._copy('vocabulary')

  @functools.cached_property
  def run(self) -> pathlib.Path:
    """A run of 4 rounds of which only the last checkpoint is left."""
    self.workdir = self._copy('run')
    for number in range(4):
      shutil.rmtree(self.workdir / f'checkpoints/round_{number:08d}')
    return self.workdir

  @property
  def checkpoint(self) -> pathlib.Path:
    """The run's only checkpoint."""
    return self.run / 'checkpoints/round_00000004'

  def file(self, name: str, content: bytes | str = b'') -> pathlib.Path:
    """Writes a file."""
    path = self.directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path

  def arguments(self, *, config: object = small_runs.CONFIG, **settings):
    """Returns those of a run on the corpus and vocabulary, damaged or not."""
    inputs = [
      self.__dict__.get(name, self._sources[name])
      for name in ('corpus', 'vocabulary')
    ]
    # The run can go on; without one it does not matter.
    settings = {'training__num_rounds': 5} | settings
    return ['--config', str(config), *small_runs.overrides(*inputs, **settings)]

  def _copy(self, name):
    return shutil.copytree(self._sources[name], self.directory / name)


class Case(NamedTuple):
  """An input that is refused."""

  words: str
  """Part of the line that says so."""
  prepare: Callable[[Place], list[str]]
  """Makes it; returns the arguments of `fedfish train`."""
  num_errors: int = 1


def from_settings(words: str, num_errors: int = 1, **settings) -> Case:
  """Returns the case of a run with other settings."""
  return Case(words, lambda place: place.arguments(**settings), num_errors)


def damaged(words: str, damage: Callable[[Place], object]) -> Case:
  """Returns the case of what `damage` does to copies."""

  def prepare(place):
    damage(place)
    return place.arguments()

  return Case(words, prepare)


def edited(words: str, name: str, change=None, **changes) -> Case:
  """Returns the case of a JSON file.

  Args:
    words: Part of the error.
    name: The file, as for `path_in`.
    change: Changes its value in place.
    **changes: Fields to change.
  """

  def damage(place):
    path = path_in(place, name)
    value = json.loads(path.read_text())
    value |= changes
    if change:
      change(value)
    path.write_text(json.dumps(value))

  return damaged(words, damage)


def changed(
  words: str, name: str, change: Callable[[bytes], bytes] | bytes
) -> Case:
  """Returns the case of a file with other bytes, or changed ones."""

  def damage(place):
    path = path_in(place, name)
    new = change if isinstance(change, bytes) else change(path.read_bytes())
    path.write_bytes(new)

  return damaged(words, damage)


def removed(words: str, name: str) -> Case:
  """Returns the case of a file that is missing."""
  return damaged(words, lambda place: path_in(place, name).unlink())


def path_in(place: Place, name: str) -> pathlib.Path:
  """Returns a file in a copy, such as 'corpus/manifest.json'."""
  kind, _, name = name.partition('/')
  return getattr(place, kind) / name
