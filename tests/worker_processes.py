"""Finds the processes that TFF's own execution context starts."""

import pathlib


def below(ancestor: int) -> list[int]:
  """Returns the ids of TFF's worker processes that descend from a process.

  Args:
    ancestor: The id of the process.
  """
  names, parents = {}, {}
  for directory in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      text = (directory / 'stat').read_text()
    except OSError:  # It has just ended.
      continue
    # The name is in parentheses and may hold any character.
    name, _, rest = text.partition('(')[2].rpartition(')')
    state, parent = rest.split()[:2]
    if state != 'Z':
      pid = int(directory.name)
      names[pid], parents[pid] = name, int(parent)
  workers = []
  for pid, name in names.items():
    above = pid
    while above in parents and above != ancestor:
      above = parents[above]
    if name == 'worker_binary' and above == ancestor:
      workers.append(pid)
  return sorted(workers)
