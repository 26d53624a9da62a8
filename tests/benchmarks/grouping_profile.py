"""Time of our grouping job, by stage.

Every thread of the job runs under cProfile. A stage is told from the built-in
function, else from the function that calls it, by the patterns below, so that
new code may end up under `other`; the dearest functions are printed, too.

cProfile makes every call a fraction of a microsecond dearer: what consists of
many small calls, Beam above all, has a smaller share in truth. Sampling is no
way out. A thread that samples others meets them where they give up the
interpreter's lock, as in hashing, and one that does not wait for it crashes.
Processes that a job starts are not seen: profile jobs that run in one.
"""

import argparse
import collections
import cProfile
import functools
import os
import pathlib
import re
import tempfile
import threading
import time
from types import CodeType

from benchmarks.grouping_arms import run_ours

import pipelines

_NUM_FUNCTIONS = 12
_WAITING = 'waiting'

# Of built-in functions, the first that matches the name.
_BUILTIN_STAGES = [
  (_WAITING, r"'_thread\.\w+'|_queue\.|time\.sleep|select|posix\.wait|_socket"),
  ('hash', r'_hash|_sha\d|_blake'),
  ('decompress', r'zlib|Decompress'),
  ('sort', r"'sort'|sorted|sort_indices|_heapq"),
  ('checksum', r'crc32'),
  ('pack blocks', r'pyarrow'),
]
# Of our own code, the first that matches 'file:function'.
_OWN_STAGES = [
  ('count words', r':num_words'),
  ('key', r'/keys\.py|/splits\.py'),
  ('pack blocks', r'/blocks\.py:(encode_block|decode_block)'),
  ('sort', r'/blocks\.py'),
  (
    'write and index',
    r'/(write_groups|output|places|files|finish|reports)\.py',
  ),
  ('encode', r'/records\.py|/protos\.py|ncode'),
  ('read lines', r'/open_raw\.py|/objects\.py'),
  ('loop over records', r'/read_files\.py'),
  ('check records', r'/web_articles\.py|/read_\w+\.py'),
]
# Of libraries, the first that matches the file.
_LIBRARY_STAGES = [
  ('parse JSON', r'/json/'),
  ('key', r'/urllib/|/tldextract/'),
  ('read lines', r'/apache_beam/io/'),
  ('write and index', r'/shutil\.py|/pyarrow/parquet/'),
  ('build the Beam pipeline', r'/(inspect|argparse|dis|gettext|typing)\.py'),
  # Its threads only wait for what other processes send.
  (_WAITING, r'/grpc/'),
  ('Beam', r'/apache_beam/|/concurrent/|/(threading|queue)\.py'),
]
_REPOSITORY = pathlib.Path(pipelines.__file__).parents[1]


class StageProfile:
  """Profiles this thread and those that start while it is entered.

  Attributes:
    stage_seconds: Seconds by stage, of all threads, without those they waited.
    function_seconds: Likewise, by function, without what it calls; a built-in
      function counts for each of its callers.
  """

  def __enter__(self):
    self.stage_seconds = collections.Counter()
    self.function_seconds = collections.Counter()
    self._profiles = []
    threading.setprofile(self._start)
    self._start()
    return self

  def __exit__(self, *_):
    self._profiles[0].disable()
    threading.setprofile(None)
    for profile in self._profiles:
      for entry in profile.getstats():
        self._add(entry)

  def _start(self, *_) -> None:
    # Called with a new thread's first event: replaces itself.
    self._profiles.append(profile := cProfile.Profile())
    profile.enable()

  def _add(self, entry) -> None:
    if isinstance(entry.code, str):
      # Counted with its callers, below.
      return
    stage, name = _stage(entry.code), _name(entry.code)
    self._count(stage, name, entry.inlinetime)
    for call in entry.calls or ():
      if isinstance(call.code, str):
        self._count(
          _builtin_stage(call.code) or stage,
          f'{call.code} of {name}',
          call.inlinetime,
        )

  def _count(self, stage: str, name: str, seconds: float) -> None:
    if stage != _WAITING:
      self.stage_seconds[stage] += seconds
      self.function_seconds[f'{stage}: {name}'] += seconds


@functools.cache
def _stage(code: CodeType) -> str:
  path = code.co_filename
  stages = _LIBRARY_STAGES
  for package in ('pipelines', 'tff_fedfish'):
    if path.startswith(str(_REPOSITORY / package)):
      path, stages = path.removeprefix(str(_REPOSITORY)), _OWN_STAGES
  # Of a library, only what is below the directory of all tells something.
  path = re.sub(r'.*/(site-packages|python3\.\d+)/', '/', path)
  return _first(stages, f'{path}:{code.co_name}') or 'other'


@functools.cache
def _builtin_stage(name: str) -> str | None:
  return _first(_BUILTIN_STAGES, name)


def _first(stages: list[tuple[str, str]], text: str) -> str | None:
  matches = (stage for stage, pattern in stages if re.search(pattern, text))
  return next(matches, None)


def _name(code: CodeType) -> str:
  path = '/'.join(code.co_filename.split('/')[-2:])
  return f'{path}:{code.co_firstlineno} {code.co_name}'


def format_profile(profile: StageProfile, num_records: int) -> str:
  """Returns the table of the stages, and the dearest functions."""
  total = profile.stage_seconds.total()
  lines = [f'{"stage (under cProfile)":32}{"share":>8}{"us/record":>11}']
  rows = profile.stage_seconds.most_common()
  for name, seconds in [*rows, ('all', total)]:
    each = seconds / num_records * 1e6
    lines.append(f'{name:32}{seconds / total:8.1%}{each:11.1f}')
  lines += ['', 'dearest functions']
  for name, seconds in profile.function_seconds.most_common(_NUM_FUNCTIONS):
    lines.append(f'{seconds / total:8.1%}  {name}')
  return '\n'.join(lines)


def main() -> None:
  """Runs one job of ours twice, and prints the shares of its stages."""
  parser = argparse.ArgumentParser(description=main.__doc__)
  parser.add_argument('--input', required=True, help='a quoted pattern')
  parser.add_argument('--num_records', type=int, required=True)
  parser.add_argument('--num_shards', type=int, default=8)
  arguments = parser.parse_args()
  profile = StageProfile()
  with tempfile.TemporaryDirectory() as directory:
    job = [arguments.input, os.path.join(directory, 'plain')]
    run_ours(*job, arguments.num_shards)
    start = time.process_time()
    job[1] = os.path.join(directory, 'again')
    run_ours(*job, arguments.num_shards)
    each = (time.process_time() - start) / arguments.num_records * 1e6
    job[1] = os.path.join(directory, 'profiled')
    run_ours(*job, arguments.num_shards, around=profile)
  print(format_profile(profile, arguments.num_records))
  print(f'\nwithout cProfile: {each:.1f} us of processor time per record')


if __name__ == '__main__':
  main()
