"""Uploads of a round of a one-shot method, as files that a solve reads."""

import pathlib
from collections.abc import Sequence

import numpy as np

from models.model_shapes import ModelShape, weight_shapes
from tff_fedfish.errors import UserError
from tff_fedfish.methods.one_shot.uploads import (
  CLIENT_WEIGHT,
  SUMMARY,
  WEIGHTS,
  UploadKind,
  Uploads,
  summary_shapes,
)
from tff_fedfish.run import client_state_files


class StoredUploads(Uploads):
  """Uploads in the order of the client ids; see `client_state_files.py`.

  A file is checked when it is first read. Whatever reads one raises UserError
  if it is not as it was written, or of another model.
  """

  def __init__(
    self, directory: pathlib.Path, shape: ModelShape, kind: UploadKind
  ):
    """Reads the manifest in the directory of a round.

    Raises:
      UserError: If it cannot be read.
    """
    super().__init__(shape, kind)
    self._directory = directory
    self._shapes = {f'{CLIENT_WEIGHT}/0': ()}
    for part, shapes in (
      (WEIGHTS, weight_shapes(shape)),
      (SUMMARY, summary_shapes(shape, kind)),
    ):
      for i, sizes in enumerate(shapes.values()):
        self._shapes[f'{part}/{i}'] = sizes
    try:
      found = client_state_files.read_manifest(directory)
    except (OSError, ValueError) as error:
      raise UserError(
        f'The uploads in {str(directory)!r} cannot be read ({error}). '
        f'{client_state_files.ADVICE}'
      ) from error
    self._entries = [found[name] for name in sorted(found)]
    self._is_checked = [False] * len(found)
    self.client_ids = [bytes.fromhex(name) for name in sorted(found)]
    self.num_bytes = sum(entry.num_bytes for entry in found.values())

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
    entry = self._entries[index]
    path = self._directory / entry.file
    if not self._is_checked[index]:
      client_id = self.client_ids[index]
      client_state_files.require_as_written(client_id, path, entry, 'upload')
      client_state_files.require_shapes(client_id, path, self._shapes, 'upload')
      self._is_checked[index] = True
    return client_state_files.read(path, paths)
