"""Sends `fedfish train` signals at its writes.

A process that imported TensorFlow forks a child for each signal. The child
sends it to itself just before a given call on a file, so that no test waits for
a moment.
"""

import fnmatch
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

_LIMIT_SECONDS = 300
_ROOT = pathlib.Path(__file__).parents[1]


def stop(
  arguments: Sequence[str], stops: Sequence[tuple[signal.Signals, str]]
) -> str:
  """Runs `fedfish` once for each stop, which ends it.

  Args:
    arguments: Of `fedfish`; every run after the first one resumes.
    stops: Signals, each with a pattern of `NAME PATH`, such as
      `os.rename */metrics.csv`. Names are Python's audit events, with the path
      that is written, and `fsync`.

  Returns:
    What the runs printed on stderr.

  Raises:
    AssertionError: If a run ends otherwise.
  """
  done = subprocess.run(
    [sys.executable, __file__, json.dumps([*stops]), *arguments],
    cwd=_ROOT,
    env=os.environ | {'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=_LIMIT_SECONDS,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stderr


def _signal_before(signal_num, pattern):
  def observe(name, arguments):
    index = 1 if name == 'os.rename' else 0
    if len(arguments) > index:
      call = f'{name} {arguments[index]}'
      if fnmatch.fnmatch(call, pattern):
        os.kill(os.getpid(), signal_num)

  fsync = os.fsync

  def observed_fsync(file):
    observe('fsync', [os.readlink(f'/proc/self/fd/{file}')])
    fsync(file)

  os.fsync = observed_fsync
  sys.addaudithook(observe)


def _main(stops, arguments):
  # All that children need, so that none of them imports it.
  import tff_fedfish.methods.one_shot.client_work
  import tff_fedfish.rounds.compose
  import tff_fedfish.training.loop  # noqa: F401
  from tff_fedfish.cli.main import main

  # A child has none of the threads that are running here. TensorFlow has not
  # started any: this process runs no op. OpenBLAS and Arrow's allocator start
  # theirs again. The event loop of TFF's default context stays away, but
  # `fedfish train` sets a context of its own.
  for signal_num, pattern in stops:
    child = os.fork()
    if not child:
      _signal_before(signal_num, pattern)
      os._exit(main(arguments))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (-signal_num, 128 + signal_num):
      sys.exit(f'{pattern}: the run ended with {code}')


if __name__ == '__main__':
  _main(json.loads(sys.argv[1]), sys.argv[2:])
