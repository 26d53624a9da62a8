"""Which corpus a run or an evaluation used, wherever that lies."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.manifest import Manifest

CORPUS_NAME = 'corpus.json'


class Corpus(Protocol):
  """Clients and examples: `GroupedCorpus`, `TokenStore` or `ImageClients`."""

  client_ids: Sequence[bytes]
  """All clients, held-out ones included, sorted."""
  held_out: Sequence[bytes]
  """Clients that the corpus's own split holds out of training; () where it has
  none."""
  twins: Mapping[bytes, bytes] | None
  """See `ImageClients`; None with text."""
  manifest: Manifest | None
  """None with images."""
  row_name: str
  """Name of the rows that a client trains on: 'sequences' or 'images'."""

  @property
  def fingerprint(self) -> str:
    """SHA-256 of the clients and their sizes, in hexadecimal."""


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
  schema_version: int = 1

  def label(self, directory: str | os.PathLike) -> str:
    """Returns the display name: 'stack_overflow, train'.

    Args:
      directory: Where the corpus or its tokens lie; the corpus's directory
        names a whole corpus.
    """
    if self.part is None:
      # Late: NumPy takes its time, which a config need not wait for.
      from tff_fedfish.data import token_store

      return token_store.corpus_name_of(directory)
    return f'{self.name}, {self.part}'

  def to_json_dict(self) -> dict[str, Any]:
    """Returns `corpus_identity` of `summary.json`."""
    values = dataclasses.asdict(self)
    del values['schema_version']
    return values


def identify(config: TrainConfig, corpus: Corpus) -> CorpusIdentity:
  """Returns the identity of an opened corpus.

  The config is of a run that trains on a corpus of this kind.
  """
  manifest = corpus.manifest
  split = manifest and manifest.split
  return CorpusIdentity(
    name=manifest.corpus if manifest else config.data.corpus,
    key=manifest and manifest.key,
    part=split and split.name,
    grouping=_grouping(manifest) if split else corpus.fingerprint,
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
  files.write_json(run / CORPUS_NAME, dataclasses.asdict(identity))


def read_identity(run: pathlib.Path) -> CorpusIdentity | None:
  """Returns the identity of a run's corpus; None: it has none.

  Raises:
    UserError: If `corpus.json` is damaged, or of a newer version.
  """
  path = run / CORPUS_NAME
  with files.explained(path, 'the corpus of a run', 'Restore the file.'):
    try:
      return files.read_json(path, schema=CorpusIdentity)
    except FileNotFoundError:
      return None
