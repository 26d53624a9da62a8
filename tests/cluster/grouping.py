"""Corpora of several kinds, and `fedfish group` as a command."""

import gzip
import hashlib
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from cluster.hosts import Process, wait_until

ROOT = pathlib.Path(__file__).parents[2]
DEBIAN = ROOT / 'tff_fedfish' / 'corpora' / 'debian_descriptions'
ENVIRONMENT = {'PYTHONPATH': f'{ROOT}:{ROOT / "tests"}'}
KINDS = {
  'small': ('c4',),
  'split': (
    'c4',
    '--split_by=client',
    '--held_out_fraction=0.2',
    '--validation_fraction=0.1',
  ),
  'optional': ('c4',),
  'skewed': ('c4', '--num_shards=16'),
}
"""Arguments of `fedfish group` for each kind of corpus."""
FIRST_WRITTEN = {
  'small': 'd09f0f1da566067efbac16b1b5cd4734684931cc6807d4786bceeac8ad021149',
  'split': '72f871d67777449bc3de582f476d953b211507059fbf830aa083e821d7bc2d3f',
  'optional': (
    '15751dc0ced8de5ff2bb79bdb79bd53ed287de70582b849292dc96f7bcf96761'
  ),
  'big': '7ec5748b1646419181ca92a4644c4780dd96b45cf0fea38e2f76f0ecb3872b75',
}
"""`digest_of_all` of what commit 9132657 wrote for each kind of corpus."""


def raw_files(kind: str, directory: pathlib.Path) -> str:
  """Returns a pattern of the raw files of a corpus; makes them if it must.

  Args:
    kind: 'small', 'split'; 'optional', of whose records some have an author;
      'big', the small one twelve times; or 'skewed', 2 GB of text of which one
      host has 40 %.
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
  elif kind == 'skewed':
    _write_skewed(directory)
  return str(directory / '*')


def _write_skewed(directory, num_files=32, num_records=16_384):
  draw = random.Random(20)
  words = [f'{draw.getrandbits(32):x}' for _ in range(20_000)]
  # 2 GB in all: 4 kB a record.
  texts = [' '.join(draw.choices(words, k=460)) for _ in range(2_000)]
  for number in range(num_files):
    with open(directory / f'{number:02d}.json', 'w') as file:
      for i in range(num_records):
        host = 'large' if i % 5 < 2 else f'host{draw.randrange(5_000)}'
        record = {
          'text': f'{number} {i} {draw.choice(texts)}',
          'url': f'http://{host}.org/{number}/{i}',
          'timestamp': '2020-01-01T00:00:00Z',
        }
        file.write(json.dumps(record) + '\n')


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
    timeout=1800,
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


def digest_of_all(found: Mapping[str, str]) -> str:
  """Returns one SHA-256 for those of all files but the manifests."""
  lines = [
    f'{digest}  {name}\n'
    for name, digest in sorted(found.items())
    if not name.endswith('manifest.json')
  ]
  return hashlib.sha256(''.join(lines).encode()).hexdigest()


def error_line(process: Process) -> str:
  """Returns the only line of ours that a job has printed about its failure."""
  lines = process.text().splitlines()
  (found,) = [line for line in lines if re.match('fedfish: (error|fail)', line)]
  return found


def names(directory: pathlib.Path) -> Sequence[str]:
  """Returns the names in a directory, hidden ones included."""
  return sorted(path.name for path in directory.iterdir())


def wait_for_file(output: pathlib.Path, directory: str, timeout: float = 300):
  """Waits until a job's workers have left a file in its work directory.

  Args:
    output: The job's output.
    directory: 'tasks', 'runs' or 'shards'.
    timeout: Seconds to wait.
  """
  pattern = f'.fedfish-*/{directory}/[0-9]*'
  wait_until(lambda: any(output.glob(pattern)), timeout, pattern)
