"""Features of the clients' rows, on disk and as the clients of a round.

RUN/features/round_00000021/ holds what the clients computed in round 21, see
`client_state_files.py`: a client's `features`, float16 [rows, features], and
`labels`, int32 [rows], in the order of its rows in that round.
RUN/feature_bases/round_00000021/ holds what follows from them and is kept, too.
Both are written once.
"""

import collections
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, client_state_files
from tff_fedfish.run.client_state_files import ClientFile
from tff_fedfish.run.kept_tensors import KeptTensors
from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient

if TYPE_CHECKING:
  import tensorflow as tf

FEATURES_NAME = 'features'
BASES_NAME = 'feature_bases'
KIND = 'file of features'
"""Word of messages for a client's features."""

BATCH_ROWS = 256
"""Rows of a batch of features."""


def written_round(config: TrainConfig) -> int | None:
  """Returns the round in which clients write features; None: there is none."""
  for phase in config.phases:
    features = phase.method.features
    if features is not None and features.use == 'written':
      return phase.first_round
  return None


def directory(
  run: str | os.PathLike, round_num: int, name: str = FEATURES_NAME
) -> pathlib.Path:
  """Returns where the features of a run's round lie, or will."""
  return checkpoints.path_of(pathlib.Path(run).resolve() / name, round_num)


def entries(path: pathlib.Path) -> Mapping[str, ClientFile]:
  """Returns the files of a directory by client id in hexadecimal digits.

  Raises:
    UserError: If they are missing, or the manifest is damaged.
  """
  try:
    return client_state_files.read_manifest(path)
  except (OSError, ValueError) as error:
    manifest = path / client_state_files.MANIFEST_NAME
    raise UserError(
      f'{str(manifest)!r} must name the features that clients keep, but cannot '
      f'be read ({error}). {client_state_files.ADVICE}'
    ) from error


def digest(found: Mapping[str, ClientFile]) -> str:
  """Returns the SHA-256 of clients and contents of their files."""
  lines = (f'{name} {found[name].sha256}\n' for name in sorted(found))
  return hashlib.sha256(''.join(lines).encode()).hexdigest()


def verify(config: TrainConfig, found: checkpoints.Checkpoint) -> Iterator[int]:
  """Reads the features with which a run continues; yields the size of each.

  Args:
    config: The run's.
    found: The checkpoint. Where it is of a round before the features, there is
      nothing to read.

  Raises:
    UserError: At the first that is missing or not as it was written.
  """
  round_num = written_round(config)
  if round_num is None or found.round_num < round_num:
    return
  path = directory(found.path.parents[1], round_num)
  files_of = entries(path)
  if digest(files_of) != found.contents.get('features'):
    raise UserError(
      f'{str(path)!r} must hold the features that clients had written before '
      f'the checkpoint of round {found.round_num}, but holds others. '
      f'{client_state_files.ADVICE}'
    )
  for name, entry in files_of.items():
    client_state_files.require_as_written(
      bytes.fromhex(name), path / entry.file, entry, KIND
    )
    yield entry.num_bytes


def sync(path: pathlib.Path) -> None:
  """Flushes a directory of features to the disk.

  Raises:
    OSError: If it cannot be.
  """
  for entry in [*path.iterdir(), path, path.parent]:
    files.sync(entry)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureClient(ClientLoader):
  """A client that is fed with its features, read while they are needed."""

  client_id: bytes
  path: str
  """Its file of features."""
  takes_basis: bool = False
  """Whether it is also fed with a basis, which is empty if it has none."""
  basis: str | None = None
  """Its file of the basis; None: it has none."""
  kept: KeptTensors | None = None
  """Tensors that it kept. None: clients keep nothing."""

  def load(self) -> LoadedClient:
    """Returns batches of <x=<features, ...>, y>, and what it kept.

    With a basis x has `vectors`, float64 [batch, n], the batch's rows of U, and
    `power_sums`, float64 [2, n], the same in every batch.
    """
    import tensorflow as tf

    features = _rows(self.path, 'features', 'float16')
    parts = collections.OrderedDict(features=features)
    if self.takes_basis and self.basis is not None:
      sums = client_state_files.read(self.basis, ['power_sums'])['power_sums']
      parts['vectors'] = _rows(self.basis, 'vectors', 'float64')
    elif self.takes_basis:
      num_rows, _ = client_state_files.shapes(self.path)['features']
      sums = np.zeros((2, 0))
      parts['vectors'] = _batches(np.zeros((num_rows, 0)))
    if self.takes_basis:
      parts['power_sums'] = tf.data.Dataset.from_tensors(sums).repeat()
    labels = client_state_files.read(self.path, ['labels'])['labels']
    dataset = tf.data.Dataset.zip((parts, _batches(labels)))
    data = dataset.map(lambda x, y: collections.OrderedDict(x=x, y=y))
    if self.kept is not None:
      data = collections.OrderedDict(data=data, state=self.kept.datasets())
    counts = {'num_dropped_sequences': 0, 'num_dropped_tokens': 0}
    return LoadedClient(data, counts)


def read_features(path: str | os.PathLike) -> np.ndarray:
  """Returns a client's features without reading them, float16 [rows, p]."""
  num_rows, num_features = client_state_files.shapes(path)['features']
  begin, _ = client_state_files.position(path, 'features')
  return np.memmap(path, '<f2', 'r', begin, (num_rows, num_features))


def _rows(path, name, dtype) -> 'tf.data.Dataset':
  """Returns batches of the rows of a tensor, read as they are asked for."""
  import tensorflow as tf

  num_rows, width = client_state_files.shapes(path)[name]
  if not num_rows * width:
    return _batches(np.zeros((num_rows, width), dtype))
  begin, end = client_state_files.position(path, name)
  records = tf.data.FixedLengthRecordDataset(
    os.fspath(path),
    record_bytes=width * np.dtype(dtype).itemsize,
    header_bytes=begin,
    footer_bytes=os.path.getsize(path) - end,
  )
  return records.batch(BATCH_ROWS).map(
    lambda text: tf.ensure_shape(tf.io.decode_raw(text, dtype), [None, width])
  )


def _batches(values) -> 'tf.data.Dataset':
  import tensorflow as tf

  return tf.data.Dataset.from_tensor_slices(values).batch(BATCH_ROWS)
