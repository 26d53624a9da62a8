"""A lock on a file, which also keeps out processes on other hosts."""

import errno
import fcntl
import sys
from typing import IO

# Lustre as mounted by default, NFS without lockd.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def try_lock(file: IO) -> bool:
  """Locks a file until it is closed.

  Args:
    file: A regular file, open for writing. Locks on directories and on files
      that are only read do not leave the host on NFS.

  Returns:
    False if another process holds the lock. On a disk without locks True, and
    a line on standard error says so.
  """
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
    print(
      f'fedfish: note: {file.name!r} is on a disk without locks '
      f'({error.strerror}); nothing keeps a second process out',
      file=sys.stderr,
    )
  return True
