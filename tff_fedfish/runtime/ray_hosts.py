"""Facts of the hosts of a Ray cluster that results depend on."""

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence

from tff_fedfish import environment
from tff_fedfish.errors import UserError
from tff_fedfish.late import module
from tff_fedfish.version import __version__

ray = module('ray')
# Bytes compared from the start of each file.
_MAX_COMPARED_BYTES = 1 << 18
_UNREADABLE = 'unreadable'


def host_name() -> str:
  """Returns name and address of this host, within Ray."""
  return f'{platform.node()} ({ray.util.get_node_ip_address()})'


def host_facts(paths: Sequence[str]) -> dict[str, str]:
  """Returns the facts of this host on which results depend.

  Versions of packages and a digest of this project's sources, by name, and of
  files, by absolute path. Ray itself compares the versions of Python and Ray.
  """
  names = ('tensorflow', 'tensorflow-federated')
  facts = {k: f'{v}' for k, v in environment.package_versions(names).items()}
  facts['tff_fedfish'] = f'{__version__} ({environment.sources_sha256()[:8]})'
  return facts | {path: _describe_path(path) for path in paths}


def require_same(expected: Mapping[str, str]) -> None:
  """Raises UserError where a host differs from the driver's or cannot read."""
  facts = host_facts([name for name in expected if os.path.isabs(name)])
  wrong = [
    f'{name} is {facts.get(name)}, not {text}'
    for name, text in expected.items()
    if facts.get(name) != text or text.startswith(_UNREADABLE)
  ]
  if wrong:
    raise UserError(
      f'Host {host_name()} of the Ray cluster (`--config.engine.ray_address`) '
      f'differs from this one: {"; ".join(wrong)}. Set up the same environment '
      'there, and the same files under the same paths, or take it out of the '
      'cluster (`ray stop` there).'
    )


def _describe_path(path):
  """Returns number, bytes and digest of a file, or of those in a directory.

  The digest is of names, sizes and starts of files that are not hidden.
  """
  digest, num_bytes = hashlib.sha256(), 0
  try:
    files = [path]
    if not os.path.isfile(path):
      entries = [e for e in os.scandir(path) if e.is_file()]
      files = sorted(e.path for e in entries if e.name[0] != '.')
    for name in files:
      size = os.path.getsize(name)
      num_bytes += size
      digest.update(f'{os.path.basename(name)}/{size}/'.encode())
      with open(name, 'rb') as file:
        digest.update(file.read(_MAX_COMPARED_BYTES))
  except OSError as error:
    return f'{_UNREADABLE} ({error.strerror})'
  text = f'{len(files):,} files, {num_bytes:,} bytes'
  return f'{text} ({digest.hexdigest()[:8]})'
