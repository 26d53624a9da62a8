"""`bucket://...`: a store of the tests, whose files lie below a directory."""

import io
import pathlib
import shutil
import uuid

import pytest
from pyarrow import fs

from pipelines import output
from tff_fedfish.data import places

KINDS = ('files', 'objects')
"""As HDFS has them, with directories and new names; as S3 has them."""


def mount(
  patch: pytest.MonkeyPatch, directory: pathlib.Path, kind: str = 'files'
) -> None:
  """Lets this process reach what is below a directory as `bucket://`."""
  connect = places._connect
  store = fs.SubTreeFileSystem(str(directory), fs.LocalFileSystem())
  if kind == 'objects':
    store = _ObjectStore(directory, store)

  def connect_to_bucket(root, is_patient):
    scheme, _, name = root.partition('://')
    return (store, name) if scheme == 'bucket' else connect(root, is_patient)

  patch.setattr(places, '_connect', connect_to_bucket)
  patch.setattr(output, '_SETTLE_SECONDS', 0.1)


class _ObjectStore:
  """Makes no directories and gives no new names; files appear when closed."""

  type_name = 's3'

  def __init__(self, directory, store):
    self._directory = pathlib.Path(directory)
    self.get_file_info = store.get_file_info
    self.open_input_file = store.open_input_file
    self.delete_file, self.delete_dir = store.delete_file, store.delete_dir

  def open_output_stream(self, name):
    return _Upload(self._directory / name)

  def copy_file(self, source, target):
    with open(self._directory / source, 'rb') as old:
      with self.open_output_stream(target) as file:
        shutil.copyfileobj(old, file)


class _Upload(io.BytesIO):
  def __init__(self, path):
    super().__init__()
    self._path = path

  def close(self):
    if not self.closed:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      part = self._path.with_name(f'.part-{uuid.uuid4().hex}')
      part.write_bytes(self.getvalue())
      part.rename(self._path)
    super().close()
