"""`bucket://...`: a store of the tests, whose files lie below a directory."""

import pathlib

import pytest
from pyarrow import fs

from pipelines import output
from tff_fedfish.data import places


def mount(patch: pytest.MonkeyPatch, directory: pathlib.Path) -> None:
  """Lets this process reach what is below a directory as `bucket://`."""
  connect = places._connect
  store = fs.SubTreeFileSystem(str(directory), fs.LocalFileSystem())

  def connect_to_bucket(root):
    scheme, _, name = root.partition('://')
    return (store, name) if scheme == 'bucket' else connect(root)

  patch.setattr(places, '_connect', connect_to_bucket)
  patch.setattr(output, '_SETTLE_SECONDS', 0.1)
