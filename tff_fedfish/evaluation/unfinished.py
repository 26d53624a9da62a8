"""Rows of finished clients, kept until an evaluation is written.

They grow in `.IDENTITY.unfinished/per_client.csv` beside the output. Other
options, another checkpoint or another corpus have another directory.
"""

import hashlib
import shutil
import sys
from collections.abc import Sequence

import pandas as pd

from tff_fedfish import files, locks
from tff_fedfish.config import load
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import tables
from tff_fedfish.evaluation.plan import Plan
from tff_fedfish.evaluation.tables import ClientEvaluation
from tff_fedfish.printing import count
from tff_fedfish.run import run_directory, store
from tff_fedfish.version import __version__


class UnfinishedRows:
  """Rows by client, also those of the same command when it was stopped.

  Attributes:
    client_ids: The finished clients.
  """

  def __init__(self, plan: Plan):
    """Touches nothing."""
    self._output = plan.output
    self._path = (
      plan.output.with_name(f'.{_identity(plan)}.unfinished')
      / tables.CLIENTS_NAME
    )
    self._file = None
    self.client_ids: set[bytes] = set()

  def begin(self, num_clients: int, rows_per_client: int) -> None:
    """Opens the file.

    Raises:
      UserError: If another process makes the same evaluation, or has just
        made it.
    """
    self._clients = count(num_clients, 'client')
    self._path.parent.mkdir(parents=True, exist_ok=True)
    file = open(self._path, 'a+b')
    if not locks.try_lock(file):
      file.close()
      raise UserError(
        f'`--output` {str(self._output)!r} is being written by the same '
        'command. Wait until it ends, or name another directory.'
      )
    self._file = file
    files.require_usable_output(self._output, '--output')
    file.seek(0)
    # A process that was killed may have left some of a client's rows, and half
    # a line.
    lines = [line for line in file if line.endswith(b'\n')]
    num_kept = max(len(lines) - 1, 0) // rows_per_client
    kept = lines[: num_kept and 1 + num_kept * rows_per_client]
    file.truncate(sum(map(len, kept)))
    if kept:
      self.client_ids.update(self.read()['client_id'])
      print(f'Continuing after {num_kept} of {self._clients}.', file=sys.stderr)

  def add(self, entries: Sequence[ClientEvaluation]) -> None:
    """Appends the rows of a client."""
    text = tables.csv_of(ClientEvaluation, entries)
    if self.client_ids:
      text = text.partition('\n')[2]
    with files.naming(self._path):
      self._file.write(text.encode())
      self._file.flush()
    self.client_ids.add(entries[0].client_id)

  def read(self) -> pd.DataFrame:
    """Returns the rows of the finished clients."""
    return tables.read_rows(self._path, ClientEvaluation)

  def __enter__(self) -> 'UnfinishedRows':
    return self

  def __exit__(self, kind, error, _) -> None:
    """Removes the file if nothing in it is of use any more."""
    if self._file:
      if kind is None or not self.client_ids:
        shutil.rmtree(self._path.parent)
      self._file.close()
    if isinstance(error, KeyboardInterrupt) and self.client_ids:
      error.add_note(
        f'{len(self.client_ids)} of {self._clients} are kept; the same command '
        'continues.'
      )


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
