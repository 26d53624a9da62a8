"""Rows of finished clients, kept in a file until an evaluation is written.

The file is `.NAME.unfinished` beside the output. Its first line identifies the
evaluation; each further one has the rows of a client, as JSON.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Sequence

from tff_fedfish import files
from tff_fedfish.evaluation.plan import Plan
from tff_fedfish.evaluation.tables import ClientEvaluation
from tff_fedfish.printing import count
from tff_fedfish.run import store
from tff_fedfish.version import __version__


class KeptRows:
  """Rows by client, also those of the same command when it was stopped.

  A client's rows are appended once it is finished, so that no end of the
  process loses them.

  Attributes:
    num_clients: Clients of the evaluation.
    rows: The rows of each finished client.
  """

  def __init__(self, plan: Plan):
    """Touches nothing."""
    self._plan = plan
    self._path = plan.output.with_name(f'.{plan.output.name}.unfinished')
    self.num_clients = 0
    self.rows: dict[bytes, Sequence[ClientEvaluation]] = {}

  def begin(self, num_clients: int) -> None:
    """Reads what is kept of the evaluation; another one makes way."""
    self.num_clients = num_clients
    header, lines = f'{_identity(self._plan)}\n', []
    if self._path.exists():
      first, *lines = self._path.read_text('utf-8').splitlines(keepends=True)
      if first != header:
        print(
          f'fedfish: note: {str(self._path)!r} is of another evaluation and is '
          'replaced.',
          file=sys.stderr,
        )
        lines = []
    # A process that was killed may have left half a line.
    lines = [line for line in lines if line.endswith('\n')]
    for line in lines:
      entries = [_from_json(**row) for row in json.loads(line)]
      self.rows[entries[0].client_id] = entries
    if lines:
      print(
        f'Continuing after {len(lines)} of {count(num_clients, "client")}.',
        file=sys.stderr,
      )
    self._path.parent.mkdir(parents=True, exist_ok=True)
    with files.write_atomically(self._path) as file:
      file.writelines([header, *lines])

  def add(self, entries: Sequence[ClientEvaluation]) -> None:
    """Keeps the rows of a client."""
    self.rows[entries[0].client_id] = entries
    rows = [dataclasses.asdict(e) for e in entries]
    line = json.dumps([r | {'client_id': r['client_id'].hex()} for r in rows])
    with files.naming(self._path), open(self._path, 'a') as file:
      file.write(f'{line}\n')

  def remove(self) -> None:
    """Removes the file, once the evaluation is written."""
    self._path.unlink()


def _from_json(client_id, **values):
  return ClientEvaluation(client_id=bytes.fromhex(client_id), **values)


def _identity(plan):
  """Returns a hash of everything that the rows depend on."""
  values = __version__, plan.options, sorted(plan.facts.items())
  digest = hashlib.sha256(repr(values).encode())
  if plan.run is None:
    for tensor in plan.checkpoint.tensors.values():
      digest.update(tensor.tobytes())
  else:
    # It has the checksum of the weights.
    digest.update((plan.checkpoint.path / store.MANIFEST).read_bytes())
  return digest.hexdigest()
