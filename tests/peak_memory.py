"""Peak memory of some code, measured in a process of its own."""

import os
import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[1]
_PROGRAM = """
import re, sys
def peak():
  # Not of `resource`, which begins with the memory of the parent.
  with open('/proc/self/status') as file:
    return int(re.search(r'VmHWM:\\s+(\\d+) kB', file.read())[1]) << 10
{before}
idle = peak()
{code}
print(peak() - idle, file=sys.stderr)
"""


def peak_above_idle(before: str, code: str, *arguments: str) -> int:
  """Returns the bytes by which some code raises the largest resident memory.

  Args:
    before: Python code that is run first: imports, and one small run.
    code: What is measured. What it asserts must hold.
    *arguments: `sys.argv[1:]`.
  """
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      _PROGRAM.format(before=before, code=code),
      *map(str, arguments),
    ],
    cwd=_ROOT,
    env=os.environ | {'PYTHONPATH': str(_ROOT)},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return int(done.stderr.splitlines()[-1])
