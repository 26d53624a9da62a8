"""Failures of a runner, each as the one line that a user needs."""

import errno
import os

import pytest

from pipelines import run_errors
from pipelines.output import LostFileError, WorkDirectory
from tff_fedfish.errors import FailedError, UserError


def raise_understood(error, output):
  """For a job that has finished nothing."""
  work = WorkDirectory('work', lambda path: False)
  return run_errors.raise_understood(error, output, work)


def test_unknown_errors_are_left_alone():
  assert raise_understood(KeyError('x'), 'out') is None


def test_line_that_is_one_already_is_left_alone():
  error = FailedError('The disk of DIR is full.')
  error.__cause__ = OSError(errno.ENOSPC, 'No space left on device')
  assert raise_understood(error, 'out') is None


_MACHINE = 'disk, memory and network'


@pytest.mark.parametrize('as_text', [False, True])
@pytest.mark.parametrize(
  ('code', 'kind', 'remedy'),
  [
    (errno.ENOSPC, FailedError, _MACHINE),
    (errno.ECONNREFUSED, FailedError, _MACHINE),
    (errno.ENOENT, LostFileError, 'the file that it names'),
    (errno.EACCES, LostFileError, 'the file that it names'),
  ],
)
def test_who_is_at_fault(as_text, code, kind, remedy):
  error = OSError(code, os.strerror(code))
  shown = f'[Errno {int(code)}] {os.strerror(code)}'
  if as_text:
    # As it comes from another process.
    error = RuntimeError(
      f'Traceback:\n{type(error).__name__}: {shown} [while running x]'
    )
  with pytest.raises((UserError, FailedError)) as raised:
    raise_understood(error, 'out')
  assert (type(raised.value), str(raised.value)) == (
    kind,
    f"Grouping into 'out' stopped ({shown}); nothing was kept. Check {remedy}, "
    'then run it again.',
  )


class _CommClosedError(OSError):
  """As Dask has one."""


@pytest.mark.parametrize(
  'error',
  [
    TimeoutError('timed out'),
    ConnectionResetError('Connection lost'),
    _CommClosedError('in <TCP (closed)>: Stream is closed'),
  ],
)
def test_connection_errors_without_a_number(error):
  with pytest.raises(FailedError) as raised:
    raise_understood(error, 'out')
  assert str(raised.value) == (
    f"Grouping into 'out' stopped ({error}); nothing was kept. Check "
    f'{_MACHINE}, then run it again.'
  )


@pytest.mark.parametrize('words', ['KilledWorker', 'ExecutorLostFailure'])
def test_worker_that_an_engine_has_lost(words):
  with pytest.raises(
    ChildProcessError,
    match=r"^a worker process of the grouping into 'out' ended before its work "
    r'was done, perhaps for lack of memory; nothing was kept\. Use fewer '
    r'workers, and run it again\.$',
  ):
    raise_understood(RuntimeError(f'4 times: {words}'), 'out')
