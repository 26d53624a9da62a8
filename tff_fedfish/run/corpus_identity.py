"""Which corpus a run or an evaluation used, wherever that lies."""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import json_values
from tff_fedfish.data.manifest import Manifest
from tff_fedfish.errors import UserError
from tff_fedfish.run.run_inputs import RunCorpus

CORPUS_NAME = 'corpus.json'
_SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusIdentity:
  """A corpus, by what it holds instead of by a path."""

  name: str
  """The manifest's `corpus`, such as 'c4', or `data.corpus` of images."""
  key: str | None
  """The key that a client's examples share, such as 'host'. None: images."""
  part: str | None
  """The part of a split, such as 'train'. None: the whole corpus."""
  grouping: str
  """Equal for all parts of one grouping; a whole corpus has its
  fingerprint."""
  fingerprint: str
  """SHA-256 of the clients and their sizes; of images, also of more."""

  def label(self, directory: str | os.PathLike) -> str:
    """Returns the display name: 'stack_overflow, train'.

    Args:
      directory: Where the corpus lies; its name stands for a whole corpus.
    """
    if self.part is None:
      return pathlib.Path(directory).resolve().name
    return f'{self.name}, {self.part}'

  def to_json_dict(self) -> dict[str, Any]:
    """Returns `corpus_identity` of `summary.json`."""
    return dataclasses.asdict(self)


def identify(config: TrainConfig, corpus: RunCorpus) -> CorpusIdentity:
  """Returns the identity of an opened corpus.

  Args:
    config: The config of a run that trains on a corpus of this kind.
    corpus: From `run_inputs.open_corpus`.
  """
  name, key, part, grouping = config.data.corpus, None, None, corpus.fingerprint
  if not config.data.holds_images:
    manifest = corpus.manifest
    name, key = manifest.corpus, manifest.key
    if manifest.split is not None:
      part, grouping = manifest.split.name, _grouping(manifest)
  return CorpusIdentity(
    name=name,
    key=key,
    part=part,
    grouping=grouping,
    fingerprint=corpus.fingerprint,
  )


def _grouping(manifest: Manifest) -> str:
  """Returns the SHA-256 of what the manifests of all parts have in common."""
  options = dict(manifest.options)
  # The same corpus in other files.
  options.pop('num_shards', None)
  common = {
    'corpus': manifest.corpus,
    'key': manifest.key,
    'names': manifest.split.names,
    'rule': manifest.split.rule,
    'options': options,
    # Those of all parts: each counts the others' as dropped.
    'records_in': manifest.counts.records_in,
  }
  return hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()


def write_identity(run: pathlib.Path, identity: CorpusIdentity) -> None:
  """Writes `corpus.json` of a run."""
  values = {'schema_version': _SCHEMA_VERSION, **identity.to_json_dict()}
  files.write_json(run / CORPUS_NAME, values)


def read_identity(run: pathlib.Path) -> CorpusIdentity | None:
  """Returns the identity of a run's corpus; None: an older run has none.

  Raises:
    UserError: If `corpus.json` is damaged, or of a newer version.
  """
  path = run / CORPUS_NAME
  try:
    value = files.parse_json(path.read_text(encoding='utf-8'))
    if not isinstance(value, dict):
      raise ValueError('it is no object')
    version = json_values.from_json(
      int, value.pop('schema_version'), 'schema_version'
    )
    if version <= _SCHEMA_VERSION:
      return json_values.from_json(CorpusIdentity, value, '')
  except FileNotFoundError:
    return None
  except (OSError, ValueError, KeyError) as error:
    raise UserError(
      f'{str(path)!r} must name the corpus of a run, but cannot be read '
      f'({error}). Restore the file.'
    ) from error
  raise UserError(
    f'{str(path)!r} has `schema_version` {version}, but this version of '
    f'fedfish reads up to {_SCHEMA_VERSION}. Update fedfish.'
  )
