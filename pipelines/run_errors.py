"""Says in one line why a grouping job has failed.

What a worker raises comes back as text inside an error of the runner's own.
"""

import re

import grpc

from pipelines.beam_internals import LostWorkerError
from pipelines.input_files import PATH_ERRORS
from pipelines.output import LostFileError, WorkDirectory
from tff_fedfish.data.places import StoreError
from tff_fedfish.errors import FailedError, UserError

_USER_ERROR, _STORE_ERROR = (
  re.escape(f'{kind.__module__}.{kind.__qualname__}')
  + r': (.*?)(?: \[while running|\n|$)'
  for kind in (UserError, StoreError)
)
_OS_ERROR = r'\w*Error: (\[Errno \d+\].*?)(?: \[while running|\n|$)'
# As Beam's own runner, Dask and Spark say it.
_LOST_WORKER = (
  *('Channel closed prematurely', 'KilledWorker', 'ExecutorLostFailure'),
)


class LostSchedulerError(Exception):
  """The scheduler of a cluster was lost; the message names it."""


def raise_understood(
  error: Exception, output: str, work: WorkDirectory
) -> None:
  """Raises the line that a user needs, if the error is one that is known.

  Args:
    error: Raised by the job.
    output: Its output, as the user has named it.
    work: Its work directory.

  Raises:
    UserError: For what the user can change.
    FailedError: If the machine failed, such as on a full disk.
    ChildProcessError: If a worker process of this machine was killed.
    KeyboardInterrupt: If a signal has stopped it.
  """
  if isinstance(error, FailedError) and not isinstance(error, StoreError):
    return  # It is such a line.
  # Beam wraps this one, too.
  if _find(error, KeyboardInterrupt) or 'KeyboardInterrupt' in str(error):
    raise KeyboardInterrupt from error
  if message := _find_message(error, UserError, _USER_ERROR):
    raise UserError(message) from error
  if message := _find_message(error, StoreError, _STORE_ERROR):
    raise FailedError(
      f'Grouping into {output!r} stopped ({message}); {work.remnant()}. Check '
      'that the store can be reached, then run it again.'
    ) from error
  if scheduler := _find(error, LostSchedulerError):
    raise FailedError(
      f'{scheduler} was lost; {work.remnant()}. Start it and its workers, and '
      'run the job again.'
    ) from error
  if _find(error, grpc.FutureTimeoutError):
    raise UserError(
      "`--job_endpoint` must be where a job server of Beam's answers, but none "
      'does. Start it, or name the host and the port where it runs.'
    ) from error
  lost = _find(error, LostWorkerError)
  if lost and not lost.has_begun:
    raise ChildProcessError(
      f'a worker process of the grouping into {output!r} ended at its start '
      f'({lost.words}); {work.remnant()}. Mend the cause, and run it again.'
    ) from error
  if lost or any(words in str(error) for words in _LOST_WORKER):
    raise ChildProcessError(
      f'a worker process of the grouping into {output!r} ended before '
      f'its work was done, perhaps for lack of memory; {work.remnant()}. Use '
      'fewer workers, and run it again.'
    ) from error
  if message := _find_message(error, OSError, _OS_ERROR):
    # Errors of connections need not have a number.
    match = re.search(r'\[Errno (\d+)\]', message)
    kind, what = FailedError, 'disk, memory and network'
    if match and int(match[1]) in PATH_ERRORS:
      kind, what = LostFileError, 'the file that it names'
    raise kind(
      f'Grouping into {output!r} stopped ({message}); {work.remnant()}. Check '
      f'{what}, then run it again.'
    ) from error


def _find_message(
  error: BaseException, kind: type[Exception], pattern: str
) -> str | None:
  """Returns the message of an error of a kind, if that is behind one of Beam's.

  The pattern finds it in the text of Beam's, which is all that comes from
  another process.
  """
  if cause := _find(error, kind):
    # Beam adds where it came from to the message.
    return str(cause).partition(' [while running ')[0]
  match = re.search(pattern, str(error))
  return match and match[1]


def _find(error: BaseException, kind: type[Exception]) -> BaseException | None:
  cause = error
  while cause is not None and not isinstance(cause, kind):
    cause = cause.__cause__ or cause.__context__
  return cause
