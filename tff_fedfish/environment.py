"""Versions and the machine, on which results depend besides the config.

Names no user, host or path.
"""

import hashlib
import importlib.metadata
import math
import os
import pathlib
import platform
import subprocess
from collections.abc import Iterable, Iterator
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
  'ray',
  'dataset-grouper',
  'dp-accounting',
  'tokenizers',
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

command: list[str] = []
"""The command line as typed, which `cli.main` sets; [] for Python callers."""

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CGROUP = pathlib.Path('/sys/fs/cgroup')
_OWN_CGROUP = pathlib.Path('/proc/self/cgroup')


def environment_facts() -> dict[str, Any]:
  """Returns versions, CPU, memory, devices and the commit, ready for JSON.

  Imports TensorFlow, whose devices it lists.
  """
  return {
    'fedfish': __version__,
    **git_facts(_ROOT),
    'sources_sha256': sources_sha256(),
    'python': platform.python_version(),
    'platform': platform.platform(),
    'cpu': cpu_model(),
    'cores': num_cores(),
    'memory_bytes': memory_bytes()['total'],
    'devices': devices(),
    'packages': {
      str(package.name).lower().replace('_', '-'): package.version
      # The first of a name is the one that is imported.
      for package in reversed([*importlib.metadata.distributions()])
    },
  }


def sources_sha256() -> str:
  """Returns the SHA-256 of this project's Python sources and their names."""
  digest = hashlib.sha256()
  for package in ('tff_fedfish', 'pipelines', 'models', 'configs'):
    # Not the links by which Emacs locks a file that is edited.
    paths = filter(pathlib.Path.is_file, (_ROOT / package).rglob('*.py'))
    for path in sorted(paths):
      digest.update(str(path.relative_to(_ROOT)).encode() + path.read_bytes())
  return digest.hexdigest()


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
  """Returns how many cores this process may use; a quota of CPU is obeyed."""
  cores = len(os.sched_getaffinity(0))
  for directory in _cgroups('cpu'):
    quota, _, period = _text(directory / 'cpu.max').partition(' ')
    quota = quota or _text(directory / 'cpu.cfs_quota_us')
    period = period or _text(directory / 'cpu.cfs_period_us')
    if quota.isdigit() and period.isdigit():  # Not 'max' or -1.
      cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
  return cores


def memory_bytes() -> dict[str, int]:
  """Returns 'total' and 'available' memory; a container's limit is obeyed.

  Cached files that the kernel would drop first are available.
  """
  memory = psutil.virtual_memory()
  total, available = memory.total, memory.available
  for directory in _cgroups('memory'):
    words = _text(directory / 'memory.stat').split()
    stat = dict(zip(words[::2], words[1::2], strict=False))
    for limit_name, used_name, cached_name in (
      ('memory.max', 'memory.current', 'inactive_file'),
      ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file'),
    ):
      limit, used = _text(directory / limit_name), _text(directory / used_name)
      if limit.isdigit() and used.isdigit():  # Not 'max'.
        total = min(total, int(limit))
        free = int(limit) - int(used) + int(stat.get(cached_name, 0))
        available = min(available, max(free, 0))
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


def _cgroups(controller: str) -> Iterator[pathlib.Path]:
  """Yields the process's cgroup and those that it is in, version 2 or 1.

  In a container they may be named as the host sees them: only the last, the
  root of what is mounted, is there.
  """
  for line in _text(_OWN_CGROUP).splitlines():
    _, names, path = line.split(':', 2)
    if not names or controller in names.split(','):
      inside = pathlib.PurePath(path.lstrip('/'))
      for parent in (inside, *inside.parents):
        yield _CGROUP / (controller if names else '') / parent


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text().strip()
  except OSError:  # No such file.
    return ''
