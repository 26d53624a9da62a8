"""Rows of finished clients, kept in a file until an evaluation is written.

The file is `.IDENTITY.unfinished` beside the output, with a line of JSON per
client. Other options, another checkpoint or another corpus have another file.
"""

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Sequence

from tff_fedfish import files, locks
from tff_fedfish.config import load
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.plan import Plan
from tff_fedfish.evaluation.tables import ClientEvaluation
from tff_fedfish.printing import count
from tff_fedfish.run import run_directory, store
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
    self._output = plan.output
    self._path = plan.output.with_name(f'.{_identity(plan)}.unfinished')
    self._file = None
    self.num_clients = 0
    self.rows: dict[bytes, Sequence[ClientEvaluation]] = {}

  def begin(self, num_clients: int) -> None:
    """Reads what is kept of the evaluation.

    Raises:
      UserError: If another process makes the same evaluation.
    """
    self.num_clients = num_clients
    self._path.parent.mkdir(parents=True, exist_ok=True)
    with files.naming(self._path):
      file = open(self._path, 'a+b')
    if not locks.try_lock(file):
      file.close()
      raise UserError(
        f'`--output` {str(self._output)!r} is being written by the same '
        'command. Wait until it ends, or name another directory.'
      )
    self._file = file
    self._file.seek(0)
    num_bytes = 0
    for line in self._file:
      # A process that was killed may have left half a line.
      if not line.endswith(b'\n'):
        break
      num_bytes += len(line)
      entries = [_from_json(**row) for row in json.loads(line)]
      self.rows[entries[0].client_id] = entries
    self._file.truncate(num_bytes)
    if self.rows:
      print(
        f'Continuing after {len(self.rows)} of {count(num_clients, "client")}.',
        file=sys.stderr,
      )

  def add(self, entries: Sequence[ClientEvaluation]) -> None:
    """Keeps the rows of a client."""
    self.rows[entries[0].client_id] = entries
    rows = [dataclasses.asdict(e) for e in entries]
    line = json.dumps([r | {'client_id': r['client_id'].hex()} for r in rows])
    with files.naming(self._path):
      self._file.write(f'{line}\n'.encode())
      self._file.flush()

  def remove(self) -> None:
    """Removes the file, once the evaluation is written."""
    self._path.unlink(missing_ok=True)

  def close(self) -> None:
    """Closes the file; removes it if no client is finished."""
    if self._file:
      if not os.fstat(self._file.fileno()).st_size:
        self.remove()
      self._file.close()


def _from_json(client_id, **values):
  return ClientEvaluation(client_id=bytes.fromhex(client_id), **values)


def _identity(plan):
  """Returns a hash of everything that the rows depend on."""
  values = (
    *(__version__, plan.output.name, plan.options),
    run_directory.vocabulary_fingerprint(plan.tokenizer),
    sorted(plan.facts.items()),
    sorted(load.to_json_dict(plan.config).items()),
  )
  digest = hashlib.sha256(repr(values).encode())
  if plan.run is None:
    for tensor in plan.checkpoint.tensors.values():
      digest.update(tensor.tobytes())
  else:
    # It has the checksum of the weights.
    digest.update((plan.checkpoint.path / store.MANIFEST).read_bytes())
  return digest.hexdigest()[:16]
