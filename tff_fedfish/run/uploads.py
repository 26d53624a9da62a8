"""Uploads of a round of a one-shot method, as files that a solve reads."""

import os
from collections.abc import Sequence

import numpy as np

from models.model_shapes import ModelShape, weight_shapes
from tff_fedfish.methods.one_shot.uploads import (
  CLIENT_WEIGHT,
  SUMMARY,
  WEIGHTS,
  UploadKind,
  Uploads,
  summary_shapes,
)
from tff_fedfish.run import store, tensor_files


class StoredUploads(Uploads):
  """Uploads of a round of `RUN/uploads`, in the order of the client ids.

  A file is checked when it is first read. Whatever reads one raises UserError
  if it is not as it was written, or of another model.

  Attributes:
    client_ids: Clients in this order.
    num_bytes: Bytes of all files.
  """

  def __init__(
    self,
    directory: str | os.PathLike,
    round_num: int,
    shape: ModelShape,
    kind: UploadKind,
  ):
    """Reads the manifest of a round in a directory of uploads.

    Raises:
      UserError: If it cannot be read.
    """
    super().__init__(shape, kind)
    uploads = store.RoundStore(directory)
    self._path = uploads.path(round_num)
    self._shapes = {f'{CLIENT_WEIGHT}/0': ()}
    for part, shapes in (
      (WEIGHTS, weight_shapes(shape)),
      (SUMMARY, summary_shapes(shape, kind)),
    ):
      for i, sizes in enumerate(shapes.values()):
        self._shapes[f'{part}/{i}'] = sizes
    entries = store.by_client(uploads.manifest(round_num).files)
    self.client_ids = sorted(entries)
    self._entries = [entries[client_id] for client_id in self.client_ids]
    self._is_checked = [False] * len(entries)
    self.num_bytes = sum(entry.num_bytes for entry in self._entries)

  def __len__(self) -> int:
    return len(self._entries)

  def check(self) -> None:
    """Reads every file that was not read yet, and nothing into memory."""
    for index in range(len(self)):
      self.read(index, [])

  def read(
    self, index: int, paths: Sequence[str] | None
  ) -> dict[str, np.ndarray]:
    """See `Uploads.read`."""
    path = self._path / self._entries[index].file
    if not self._is_checked[index]:
      self._entries[index].require_whole(self._path)
      found = tensor_files.shapes(path)
      tensor_files.require_shapes(path, found, self._shapes)
      self._is_checked[index] = True
    return tensor_files.read(path, paths)
