"""Versions and the machine, on which results depend besides the config.

Names no user, host or path: these facts are published with a run.
"""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
from collections.abc import Iterable
from typing import Any

import psutil

from tff_fedfish.version import __version__

PACKAGES = (
  'tensorflow-federated',
  'tensorflow',
  'tensorflow-text',
  'keras',
  'jax',
  'jaxlib',
  'numpy',
  'apache-beam',
  'dataset-grouper',
  'protobuf',
  'pyarrow',
  'safetensors',
  'ml-collections',
  'google-crc32c',
  'tldextract',
  'matplotlib',
  'jinja2',
  'rich',
)

_CGROUP = pathlib.Path('/sys/fs/cgroup')


def environment_facts() -> dict[str, Any]:
  """Returns versions, CPU, memory, devices and the commit, ready for JSON.

  Imports TensorFlow, whose devices it lists.
  """
  return {
    'fedfish': __version__,
    **git_facts(pathlib.Path(__file__).resolve().parents[1]),
    'python': platform.python_version(),
    'platform': platform.platform(),
    'cpu': cpu_model(),
    'cores': num_cores(),
    'memory_bytes': memory_bytes()['total'],
    'devices': devices(),
    'packages': package_versions(),
  }


def package_versions(
  names: Iterable[str] = PACKAGES,
) -> dict[str, str | None]:
  """Returns the version of each package; None: not installed."""
  versions = {}
  for name in names:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = None
  return versions


def cpu_model() -> str:
  """Returns the processor's name as the kernel gives it."""
  return _cpu_field('model name') or platform.machine()


def cpu_flags() -> frozenset[str]:
  """Returns the instruction sets of the processor; empty if unknown."""
  return frozenset(_cpu_field('flags').split())


def num_cores() -> int:
  """Returns how many cores this process may run on."""
  return len(os.sched_getaffinity(0))


def memory_bytes() -> dict[str, int]:
  """Returns 'total' and 'available' memory; a container's limit is obeyed."""
  memory = psutil.virtual_memory()
  total, available = memory.total, memory.available
  for limit_name, used_name in (
    ('memory.max', 'memory.current'),
    ('memory/memory.limit_in_bytes', 'memory/memory.usage_in_bytes'),
  ):
    limit, used = _integer(limit_name), _integer(used_name)
    if limit is not None and used is not None:
      total = min(total, limit)
      available = min(available, max(limit - used, 0))
  return {'total': total, 'available': available}


def devices() -> list[str]:
  """Returns what TensorFlow sees, such as 'CPU' or 'GPU (NVIDIA L4)'."""
  import tensorflow as tf

  names = []
  for device in tf.config.list_physical_devices():
    details = {}
    if device.device_type == 'GPU':
      details = tf.config.experimental.get_device_details(device)
    model = details.get('device_name')
    names.append(device.device_type + (f' ({model})' if model else ''))
  return names


def git_facts(root: pathlib.Path) -> dict[str, Any]:
  """Returns the commit of a working tree, and whether files differ from it.

  Returns:
    'git_commit' and 'git_modified'; nothing where `root` is no working tree or
    git does not answer.
  """
  # An installed package may lie somewhere inside another project's tree.
  if not (root / '.git').exists():
    return {}
  commit = _git(root, 'rev-parse', 'HEAD')
  status = _git(root, 'status', '--porcelain')
  if commit is None or status is None:
    return {}
  return {'git_commit': commit, 'git_modified': bool(status)}


def _git(root: pathlib.Path, *arguments: str) -> str | None:
  try:
    done = subprocess.run(
      # Without the option, `status` would write to the index.
      ['git', '--no-optional-locks', *arguments],
      cwd=root,
      capture_output=True,
      text=True,
      timeout=10,
      check=True,
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()


def _cpu_field(name: str) -> str:
  for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
    key, _, value = line.partition(':')
    if key.strip() == name:
      return value.strip()
  return ''


def _integer(name: str) -> int | None:
  try:
    return int((_CGROUP / name).read_text())
  except (OSError, ValueError):  # No such limit, or 'max'.
    return None
