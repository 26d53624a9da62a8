"""The directory of one evaluation: a row per client, and a summary.

| file | rows |
|---|---|
| `per_client.csv` | one per client and fraction: `ClientEvaluation` |
| `barrier.csv` | one per client of the replayed cohort: `ClientBarrier` |
| `summary.json` | `Summary` |
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterable

import pandas as pd

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import tables
from tff_fedfish.evaluation.options import OWN_ROWS
from tff_fedfish.evaluation.summary import Summary
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation

_BARRIERS_FILE = 'barrier.csv'
_SUMMARY_FILE = 'summary.json'


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
  """Contents of an evaluation's directory.

  The columns of the tables are the fields of `ClientEvaluation` and
  `ClientBarrier`.
  """

  summary: Summary
  clients: pd.DataFrame
  barriers: pd.DataFrame | None
  """None: the barrier was not measured."""


def write_evaluation(
  directory: str | os.PathLike,
  summary: Summary,
  clients: Iterable[ClientEvaluation],
  barriers: Iterable[ClientBarrier] | None = None,
) -> None:
  """Writes the directory of an evaluation; it appears whole or not at all.

  Raises:
    UserError: If `directory` holds something, is a file or cannot be written.
  """
  directory = files.require_usable_output(directory, '--output')
  with files.write_directory_atomically(
    directory, marker=_SUMMARY_FILE
  ) as temporary:
    tables.write_rows(
      temporary / tables.CLIENTS_NAME,
      ClientEvaluation,
      sorted(clients, key=lambda row: (row.client_id, row.fraction)),
      # Elsewhere the model is always the global one.
      without='' if summary.kind in OWN_ROWS else 'model',
    )
    if barriers is not None:
      rows = sorted(barriers, key=lambda row: row.client_id)
      tables.write_rows(temporary / _BARRIERS_FILE, ClientBarrier, rows)
    files.write_json(temporary / _SUMMARY_FILE, summary.to_json_dict())


def read_evaluation(directory: str | os.PathLike) -> Evaluation:
  """Reads the directory of an evaluation.

  Raises:
    UserError: If it is none, is of a newer version, or a file is damaged.
  """
  directory = pathlib.Path(directory)
  path = directory / _SUMMARY_FILE
  _require_file(path)
  with files.explained(path, 'the summary of an evaluation', tables.ADVICE):
    summary = files.read_json(path, schema=Summary)
  path = directory / tables.CLIENTS_NAME
  _require_file(path)
  clients = tables.read_rows(path, ClientEvaluation)
  if set(clients['model']) not in ({'global'}, {'personal'}, set()):
    raise UserError(
      f"{str(path)!r} must have `model` 'global' or 'personal', equal in all "
      f'lines. {tables.ADVICE}'
    )
  path, barriers = directory / _BARRIERS_FILE, None
  if path.exists():
    barriers = tables.read_rows(path, ClientBarrier)
  return Evaluation(summary=summary, clients=clients, barriers=barriers)


def _require_file(path: pathlib.Path) -> None:
  if not path.is_file():
    raise UserError(
      f'{str(path.parent)!r} must be the directory of an evaluation, but '
      f'{path.name} is not in it. Name a directory that `fedfish evaluate` '
      'wrote.'
    )
