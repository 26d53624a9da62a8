"""Corpora of several kinds, and `fedfish group` as a command."""

import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

from cluster.hosts import wait_until

ROOT = pathlib.Path(__file__).parents[2]
DEBIAN = ROOT / 'tff_fedfish' / 'corpora' / 'debian_descriptions'
NUM_RECORDS = 26_569
ENVIRONMENT = {'PYTHONPATH': f'{ROOT}:{ROOT / "tests"}'}
KINDS = {
  'small': ('c4',),
  'split': ('c4', '--split_by=client', '--held_out_fraction=0.2'),
  'optional': ('c4', '--key=host'),
}
"""Arguments of `fedfish group` for each kind of corpus."""


def raw_files(kind: str, directory: pathlib.Path) -> str:
  """Returns a pattern of the raw files of a corpus; makes them if it must.

  Args:
    kind: 'small', 'split', 'optional', or 'big': the small one twelve times.
    directory: Where to make them.
  """
  shipped = sorted(DEBIAN.glob('c4-train.*'))
  if kind in ('small', 'split'):
    return str(DEBIAN / 'c4-train.*')
  directory.mkdir(parents=True, exist_ok=True)
  if kind == 'big':
    for copy in range(12):
      for path in shipped:
        shutil.copy(path, directory / f'{copy:02d}-{path.name}')
  elif kind == 'optional':
    # Two of the files' records have authors, some of them.
    for number, path in enumerate(shipped):
      lines = gzip.decompress(path.read_bytes()).splitlines()[:1500]
      records = list(map(json.loads, lines))
      if number % 2:
        for i, record in enumerate(records[::3]):
          record['author'] = f'author {i % 5}'
      text = '\n'.join(map(json.dumps, records))
      (directory / f'{number}.json').write_text(text)
  return str(directory / '*')


def command(
  kind: str, pattern: str, output: pathlib.Path, *flags: str
) -> list[str]:
  """Returns the command that groups a corpus of a kind."""
  arguments = KINDS.get(kind, KINDS['small'])
  return [
    *(sys.executable, '-m', 'tff_fedfish', 'group', *arguments),
    *('--input', pattern, '--output', str(output), *flags),
  ]


def group_here(kind: str, pattern: str, output: pathlib.Path) -> None:
  """Groups a corpus in one process of this machine."""
  done = subprocess.run(
    command(kind, pattern, output),
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert done.returncode == 0, done.stderr


def digests(directory: pathlib.Path) -> dict[str, str]:
  """Returns SHA-256 by relative path of all files below a directory."""
  return {
    str(path.relative_to(directory)): hashlib.sha256(
      path.read_bytes()
    ).hexdigest()
    for path in sorted(directory.rglob('*'))
    if path.is_file()
  }


def names(directory: pathlib.Path) -> Sequence[str]:
  """Returns the names in a directory, hidden ones included."""
  return sorted(path.name for path in directory.iterdir())


def wait_for_staging(output: pathlib.Path, timeout: float = 60) -> None:
  """Waits until a job has made its staging directory.

  Args:
    output: The job's output.
    timeout: Seconds to wait.
  """
  pattern = f'.{output.name}.grouping-*'
  wait_until(lambda: any(output.parent.glob(pattern)), timeout, pattern)
