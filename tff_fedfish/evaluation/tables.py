"""Tables of an evaluation: a dataclass per row, written and read as CSV."""

import csv
import dataclasses
import operator
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from tff_fedfish import files
from tff_fedfish.data.client_ids import client_id_to_cell, text_to_client_id
from tff_fedfish.errors import UserError

CLIENTS_NAME = 'per_client.csv'
ADVICE = 'Restore the file, or evaluate again.'
"""Advice on a damaged file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientEvaluation:
  """One client at one fraction, scored on its evaluation half."""

  client_id: bytes
  fraction: float
  """Fraction of the client's data that it was personalized on, 0 to 0.5."""
  num_evaluation_sequences: int
  num_evaluation_tokens: int
  num_personalization_sequences: int
  loss_before: float
  """Loss of the global model; nats per token."""
  accuracy_before: float
  """Fraction of the next tokens that the global model predicts."""
  loss_after: float
  """After personalization; equals `loss_before` at fraction 0."""
  accuracy_after: float
  model: str = 'global'
  """'global', or 'personal': the client's own, in place of the global one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientBarrier:
  """One client of a cohort, on the data that its round trained on."""

  client_id: bytes
  local_loss: float
  """Loss of the model that the client trained; nats per token."""
  global_loss: float
  """Loss of the global model after the round."""
  local_accuracy: float
  global_accuracy: float


def csv_of(kind: type, rows: Iterable[Any], without: str = '') -> str:
  """Returns rows as a CSV file, in full precision.

  Columns are the fields of the dataclass `kind` but for `without`.
  """
  names = [f.name for f in dataclasses.fields(kind) if f.name != without]
  cells = ([_cell(getattr(row, name)) for name in names] for row in rows)
  return files.csv_file(names, cells)


def write_rows(
  path: pathlib.Path, kind: type, rows: Iterable[Any], without: str = ''
) -> None:
  """Writes the file of `csv_of`; it appears whole or not at all."""
  with files.write_atomically(path) as file:
    file.write(csv_of(kind, rows, without))


def read_rows(path: pathlib.Path, kind: type) -> pd.DataFrame:
  """Reads what `write_rows` wrote; a field that was left out has its default.

  Returns:
    A column per field: int64, float64, or objects of `bytes` or `str`.

  Raises:
    UserError: If a line is damaged.
  """
  fields, rows = dataclasses.fields(kind), []
  # Not by pandas: it cuts lines that are too long, and fills those too short.
  with open(path, encoding='utf-8', newline='') as file:
    reader = csv.DictReader(file, strict=True)
    try:
      columns = reader.fieldnames or ()
      for field in fields:
        if field.name not in columns and field.default is dataclasses.MISSING:
          raise ValueError(f'column {field.name!r} is missing')
      parsers = {f.name: f.type for f in fields if f.name in columns}
      parsers['client_id'] = text_to_client_id
      for cells in reader:
        if None in cells or None in cells.values():
          raise ValueError('it has not one cell per column')
        values = {n: parse(cells[n]) for n, parse in parsers.items()}
        rows.append(kind(**values))
      return as_table(kind, rows)
    except (ValueError, OverflowError, csv.Error) as error:
      raise UserError(
        f'{str(path)!r} must hold one client per line, but line '
        f'{max(reader.line_num, 1)} does not ({error}). {ADVICE}'
      ) from error


def as_table(kind: type, rows: Sequence[Any]) -> pd.DataFrame:
  """Returns dataclasses as a table; see `read_rows`."""
  types = {field.name: field.type for field in dataclasses.fields(kind)}
  # Not of dataclasses: pandas copies each of them deeply.
  table = pd.DataFrame(map(operator.attrgetter(*types), rows), columns=[*types])
  return table.astype({n: t for n, t in types.items() if t in (int, float)})


def _cell(value: bytes | str | float | int) -> str | float | int:
  return client_id_to_cell(value) if isinstance(value, bytes) else value
