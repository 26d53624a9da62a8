"""Features of the clients' rows, on disk and as the clients of a round.

RUN/features/round_00000021/ holds what the clients computed in round 21: their
`features`, float16 [rows, features], and `labels`, int32 [rows], in the order
of their rows in that round. RUN/feature_bases/round_00000021/ holds what
follows from them and is kept, too. Both are written once; see `store.py`.
"""

import collections
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, store, tensor_files
from tff_fedfish.run.client_inputs import KeptTensors
from tff_fedfish.run.store import RoundStore
from tff_fedfish.run.tensor_files import ADVICE, StoredFile
from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient

if TYPE_CHECKING:
  import tensorflow as tf

BATCH_ROWS = 256
"""Rows of a batch of features."""


def written_round(config: TrainConfig) -> int | None:
  """Returns the round in which clients write features; None: there is none."""
  for phase in config.phases:
    features = phase.method.features
    if features is not None and features.use == 'written':
      return phase.first_round
  return None


def digest(files: Mapping[str, StoredFile]) -> str:
  """Returns the SHA-256 of clients and contents of their files."""
  lines = (f'{name} {files[name].sha256}\n' for name in sorted(files))
  return hashlib.sha256(''.join(lines).encode()).hexdigest()


def verify(
  config: TrainConfig, checkpoint: checkpoints.Checkpoint
) -> Iterator[int]:
  """Reads the features with which a run continues; yields the size of each.

  Nothing is read if the checkpoint is of a round before the features.

  Raises:
    UserError: At the first that is missing or not as it was written.
  """
  round_num = written_round(config)
  if round_num is None or checkpoint.round_num < round_num:
    return
  features = RoundStore(checkpoint.path.parents[1] / store.FEATURES)
  path, files = features.path(round_num), features.manifest(round_num).files
  if digest(files) != checkpoint.contents.get('features'):
    raise UserError(
      f'{str(path)!r} must hold the features of the checkpoint of round '
      f'{checkpoint.round_num}, but holds others. {ADVICE}'
    )
  yield from features.verify(round_num)


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
      sums = tensor_files.read(self.basis, ['power_sums'])['power_sums']
      parts['vectors'] = _rows(self.basis, 'vectors', 'float64')
    elif self.takes_basis:
      num_rows, _ = tensor_files.shapes(self.path)['features']
      sums = np.zeros((2, 0))
      parts['vectors'] = _batches(np.zeros((num_rows, 0)))
    if self.takes_basis:
      parts['power_sums'] = tf.data.Dataset.from_tensors(sums).repeat()
    labels = tensor_files.read(self.path, ['labels'])['labels']
    dataset = tf.data.Dataset.zip((parts, _batches(labels)))
    data = dataset.map(lambda x, y: collections.OrderedDict(x=x, y=y))
    if self.kept is not None:
      data = collections.OrderedDict(data=data, state=self.kept.datasets())
    counts = {'num_dropped_sequences': 0, 'num_dropped_tokens': 0}
    return LoadedClient(data, counts)


def read_features(path: str | os.PathLike) -> np.ndarray:
  """Returns a client's features without reading them, float16 [rows, p]."""
  num_rows, num_features = tensor_files.shapes(path)['features']
  begin, _ = tensor_files.position(path, 'features')
  return np.memmap(path, '<f2', 'r', begin, (num_rows, num_features))


def _rows(path, name, dtype) -> 'tf.data.Dataset':
  """Returns batches of the rows of a tensor, read as they are asked for."""
  import tensorflow as tf

  num_rows, width = tensor_files.shapes(path)[name]
  if not num_rows * width:
    return _batches(np.zeros((num_rows, width), dtype))
  begin, end = tensor_files.position(path, name)
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
