"""Hosts of a Ray cluster: what each has of what a run needs.

Every host is asked by a task that runs there, which needs this package but not
TensorFlow. Hosts whose answers differ from this machine's would give other
bits, or nothing at all.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tff_fedfish import environment
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.runtime.ray_cluster import Share, describe_error
from tff_fedfish.runtime.ray_watch import Address

_PACKAGES = ('tensorflow', 'tensorflow-federated', 'ray')
# Files up to this size are compared by what they hold. Unit: bytes.
_MAX_COMPARED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Host:
  """A node of the cluster."""

  node_id: str
  """Ray's id; a host that was lost comes back with another."""
  name: str
  """Host name and address."""
  address: Address
  """Address of its raylet."""
  resources: Mapping[str, float] = dataclasses.field(compare=False)
  """All that it has, by kind."""


class Contents(NamedTuple):
  """Files under a path."""

  digest: str
  """SHA-256 of names and sizes; empty where it cannot be read."""
  text: str
  """Description, or the error."""


class HostFacts(NamedTuple):
  """Answers of a host."""

  versions: Mapping[str, str]
  """Versions by package, Python and the sources of this one among them."""
  contents: Mapping[str, Contents]
  """Contents by path."""


def living() -> list[Host]:
  """Returns the hosts that Ray knows to live."""
  import ray

  return [_host(node) for node in ray.nodes() if node['Alive']]


def find(node_id: str) -> Host:
  """Returns a host, which may be dead since."""
  import ray

  (found,) = [node for node in ray.nodes() if node['NodeID'] == node_id]
  return _host(found)


def own_node_id() -> str:
  """Returns the node of this process."""
  import ray

  return ray.get_runtime_context().get_node_id()


def facts(paths: Iterable[str]) -> HostFacts:
  """Returns the facts of this machine, of files and directories among them."""
  found = environment.package_versions(_PACKAGES)
  versions = {
    'python': platform.python_version(),
    **{name: version or 'missing' for name, version in found.items()},
    'tff_fedfish': _own_version(),
  }
  contents = {path: contents_of(path) for path in paths}
  return HostFacts(versions, contents)


def contents_of(path: str) -> Contents:
  """Returns what lies at a path: of a directory, the files in it by size.

  Directories within it are compared by name. Hidden files, which may be other
  programs' of this host, are left out.
  """
  try:
    if os.path.isfile(path):
      names = [path]
    else:
      names = sorted(e.path for e in os.scandir(path) if e.name[0] != '.')
    entries = [_entry(name) for name in names]
  except OSError as error:
    return Contents('', f'cannot be read ({error.strerror})')
  num_bytes = sum(size for _, size, _ in entries)
  text = f'{len(entries):,} files, {num_bytes:,} bytes'
  return Contents(
    hashlib.sha256(json.dumps(entries).encode()).hexdigest(), text
  )


def ask(
  hosts: Sequence[Host], paths: Sequence[str], *, timeout_seconds: float = 60.0
) -> dict[Host, HostFacts | str]:
  """Returns the facts of each host, or why it gave none.

  All are asked at once, and have `timeout_seconds`. See also `facts`.
  """
  import ray
  from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

  task = ray.remote(facts)
  tasks = {
    host: task.options(
      num_cpus=0,
      max_retries=0,
      scheduling_strategy=NodeAffinitySchedulingStrategy(
        host.node_id, soft=False
      ),
    ).remote(paths)
    for host in hosts
  }
  if tasks:
    ray.wait([*tasks.values()], num_returns=len(tasks), timeout=timeout_seconds)
  answers = {}
  for host, answer in tasks.items():
    try:
      answers[host] = ray.get(answer, timeout=0)
    except ray.exceptions.GetTimeoutError:
      ray.cancel(answer, force=True)
      answers[host] = f'did not answer within {timeout_seconds:g} s'
    except ray.exceptions.RayError as error:
      cause = getattr(error, 'cause', None) or error
      answers[host] = f'cannot answer: {describe_error(cause)}'
  return answers


def differences(
  expected: HostFacts, found: HostFacts | str
) -> tuple[list[str], list[str]]:
  """Returns what a host lacks or has otherwise: of packages, and of paths."""
  if isinstance(found, str):
    return [found], []
  versions = [
    f'has {name} {found.versions.get(name)}, not {version}'
    for name, version in expected.versions.items()
    if found.versions.get(name) != version
  ]
  paths = []
  for path, contents in expected.contents.items():
    other = found.contents[path]
    if not other.digest:
      paths.append(f'{path!r} {other.text}')
    elif contents.digest and other.digest != contents.digest:
      paths.append(f'{path!r} holds {other.text}, not the {contents.text} here')
  return versions, paths


def require_same(paths: Sequence[str], share: Share) -> Mapping[str, Contents]:
  """Checks that each host that may get a worker can work.

  Args:
    paths: Files and directories that workers read.
    share: Resources of a worker. Hosts that have less get none.

  Returns:
    Contents by path, the same on all of these hosts.

  Raises:
    UserError: Naming the hosts that differ from this one, and in what.
  """
  own, here = own_node_id(), facts(paths)
  hosts = [
    host
    for host in living()
    if host.node_id != own
    and host.resources.get('CPU', 0) >= share.cpus
    and host.resources.get('GPU', 0) >= share.gpus
  ]
  wrong = []
  for host, found in ask(hosts, paths).items():
    versions, missing = differences(here, found)
    if problems := versions + missing:
      wrong.append((f'host {host.name}: {", ".join(problems)}', versions))
  if wrong:
    is_of_paths = not any(versions for _, versions in wrong)
    raise UserError(
      'Every host of the Ray cluster (`--config.engine.ray_address`) that may '
      'get a worker must have what this one has: '
      + '; '.join(text for text, _ in wrong)
      + '. '
      + (
        'Copy or mount it there under the same path'
        if is_of_paths
        else 'Set up the Python environment of this machine there'
      )
      + ', or take the host out of the cluster (`ray stop` there).'
    )
  return here.contents


def require_here(expected: Mapping[str, Contents]) -> None:
  """Raises FailedError in a worker whose host lacks what the driver's has."""
  here = HostFacts({}, {path: contents_of(path) for path in expected})
  _, missing = differences(HostFacts({}, expected), here)
  if missing:
    raise FailedError(
      f'host {platform.node()}: {", ".join(missing)}. Copy or mount it there '
      'under the same path, or take the host out of the cluster (`ray stop` '
      'there)'
    )


def _host(node):
  address = node['NodeManagerAddress']
  return Host(
    node['NodeID'],
    f'{node["NodeManagerHostname"]} ({address})',
    (address, node['NodeManagerPort']),
    node['Resources'],
  )


def _entry(path):
  """Returns name, size and, of a small file, the digest."""
  name = os.path.basename(path)
  if os.path.isdir(path):
    return name, 0, ''
  size, digest = os.path.getsize(path), ''
  with open(path, 'rb') as file:
    if size <= _MAX_COMPARED_BYTES:
      digest = hashlib.sha256(file.read()).hexdigest()
  return name, size, digest


def _own_version():
  """Returns the version, and a digest of the sources."""
  from tff_fedfish.version import __version__

  root = pathlib.Path(__file__).resolve().parents[1]
  digest = hashlib.sha256()
  for folder in (root, root.parent / 'models'):
    for path in sorted(folder.rglob('*.py')):
      digest.update(path.read_bytes())
  return f'{__version__} ({digest.hexdigest()[:8]})'
