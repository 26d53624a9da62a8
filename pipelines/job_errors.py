"""Says in one line why a grouping job has failed.

What a worker raises comes back as text inside an error of the runner's own.
"""

import errno
import re
import urllib.error

from apache_beam.options.pipeline_options import (
  PipelineOptions,
  StandardOptions,
)

from pipelines.remote_files import StoreError
from tff_fedfish.errors import FailedError, UserError

_USER_ERROR, _STORE_ERROR = (
  re.escape(f'{kind.__module__}.{kind.__qualname__}')
  + r': (.*?)(?: \[while running|\n|$)'
  for kind in (UserError, StoreError)
)
_OS_ERROR = r'\w*Error: (\[Errno \d+\].*?)(?: \[while running|\n|$)'
# Errors of the disk and the memory, whatever the input holds.
_OF_THE_MACHINE = (
  *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
  *(errno.EIO, errno.EROFS, errno.ENOMEM),
)


def raise_understood(
  error: Exception, output: str, options: PipelineOptions
) -> None:
  """Raises the line that a user needs, if the error is one that is known.

  Args:
    error: Raised by the job.
    output: Its output, as the user has named it.
    options: Beam's.

  Raises:
    UserError: For what the user can change.
    FailedError: If the machine failed, such as on a full disk.
    ChildProcessError: If a worker process of this machine was killed.
  """
  if found := _find_message(error, UserError, _USER_ERROR):
    raise UserError(found) from error
  if found := _find_message(error, StoreError, _STORE_ERROR):
    raise FailedError(
      f'Grouping into {output!r} stopped ({found}). There is no manifest, so '
      'what is left is no corpus. Check that the store can be reached, then '
      'run it again: that removes it.'
    ) from error
  if 'job server jar' in str(error) or _find(error, urllib.error.URLError):
    runner = options.view_as(StandardOptions).runner
    flag = 'spark' if 'Spark' in runner else 'flink'
    raise UserError(
      f"`--runner={runner}` needs Beam's job server, a Java program that could "
      f'not be fetched from here. Name its jar with `--{flag}_job_server_jar`, '
      'or start it elsewhere and name it with `--runner=PortableRunner '
      '--job_endpoint=HOST:PORT`.'
    ) from error
  if 'Channel closed prematurely' in str(error):
    raise ChildProcessError(
      f'a worker process of the grouping into {output!r} ended before '
      'its work was done, perhaps for lack of memory. Nothing was kept. Use '
      'fewer workers, or more shards, and run it again.'
    ) from error
  if found := _find_message(error, OSError, _OS_ERROR):
    stopped = f'Grouping into {output!r} stopped ({found})'
    if any(f'[Errno {code}]' in found for code in _OF_THE_MACHINE):
      raise FailedError(
        f'{stopped}; nothing was kept. Check the disk and its free space, '
        'then run it again.'
      ) from error
    raise UserError(
      f'{stopped}; nothing was kept. Check the input files, then run it again.'
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
  found = re.search(pattern, str(error))
  return found and found[1]


def _find(error: BaseException, kind: type[Exception]) -> BaseException | None:
  cause = error
  while cause is not None and not isinstance(cause, kind):
    cause = cause.__cause__ or cause.__context__
  return cause
