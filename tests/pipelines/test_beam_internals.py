"""Worker processes of Beam's own runner find what they need, and no more."""

import os
import pathlib

from pipelines import beam_internals

_ROOT = pathlib.Path(beam_internals.__file__).parents[1]


def test_environment_of_workers():
  found = beam_internals.worker_environment(
    {
      'HOME': '/root',
      'NO_PROXY': 'store.example',
      'no_grpc_proxy': 'store.example',
      'PYTHONPATH': '/own',
    }
  )
  hosts = 'store.example,localhost,127.0.0.1'
  assert found == {
    'HOME': '/root',
    # Readers of the one would not look at the other.
    'NO_PROXY': hosts,
    'no_proxy': hosts,
    'no_grpc_proxy': hosts,
    'PYTHONSAFEPATH': '1',
    'PYTHONPATH': os.pathsep.join(['/own', str(_ROOT)]),
  }
