"""The directory of one evaluation: a row per client, and a summary.

`per_client.csv` has a row per client and fraction, `barrier.csv`, where the
Client-Server Barrier was measured, a row per client of the cohort,
`affinity.csv`, where clients weigh each other's models, a row per pair, and
`summary.json` what `summarize_evaluation` makes of them.
"""

import csv
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish import files
from tff_fedfish.data.client_ids import (
  client_id_to_cell,
  client_id_to_text,
  text_to_client_id,
)
from tff_fedfish.errors import UserError, require
from tff_fedfish.evaluation import statistics

_SCHEMA_VERSION = 1
OWN_ROWS = ('own_test', 'own_validation')
"""Kinds with clients that train, each scored on rows that it keeps for that."""
KINDS = ('held_out', 'participating', *OWN_ROWS, 'transfer')
"""Which clients were scored on what; see `summarize_evaluation`."""
_CLIENTS_FILE = 'per_client.csv'
_BARRIERS_FILE = 'barrier.csv'
_AFFINITIES_FILE = 'affinity.csv'
_SUMMARY_FILE = 'summary.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientEvaluation:
  """One client at one fraction, scored on its evaluation half."""

  client_id: bytes
  fraction: float
  """Share of the client's sequences that it was personalized on, 0 to 0.5."""
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
class Affinity:
  """Worth of another client's models to a client, summed over rounds."""

  client_id: bytes
  cluster: int
  """Cluster of its data; -1: the clients have none."""
  candidate_id: bytes
  affinity: float


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
  """Contents of an evaluation's directory."""

  summary: dict[str, Any]
  clients: list[ClientEvaluation]
  barriers: list[ClientBarrier] | None
  """None where the barrier was not measured."""
  affinities: list[Affinity] = dataclasses.field(default_factory=list)
  """Empty where clients have none."""


def summarize_evaluation(
  clients: Sequence[ClientEvaluation],
  *,
  kind: str,
  corpus: str,
  corpus_identity: Mapping[str, Any] | None = None,
  checkpoint: Mapping[str, Any],
  personalization: Mapping[str, Any],
  skipped_clients: Mapping[str, int],
  barriers: Sequence[ClientBarrier] | None = None,
  effective_clients: Mapping[str, Any] | None = None,
  unknown_token_fraction: float | None = None,
  num_bytes: Mapping[bytes, int] | None = None,
) -> dict[str, Any]:
  """Computes `summary.json`; every client counts once.

  The barrier is that of Dhawan et al. (2024), FedFish, eq. 5: global minus
  local loss, and the same for error = 1 - accuracy; positive is worse.

  Args:
    clients: One entry per client and fraction, in any order.
    kind: 'held_out', 'participating' (clients that trained it), 'own_test' (the
      same, each on its own test rows), 'own_validation' (on its validation
      rows) or 'transfer'.
    corpus: Display name of the corpus that the clients come from.
    corpus_identity: `CorpusIdentity.to_json_dict` of it. None: not known.
    checkpoint: Facts of the model that was evaluated; `round` at least.
    personalization: Its settings: epochs, learning_rate, batch_size,
      sequence_length, split_seed.
    skipped_clients: How many clients were left out, by reason.
    barriers: One entry per client of the cohort; None: not measured.
    effective_clients: `EffectiveClients.summary` of that cohort; None: not
      measured.
    unknown_token_fraction: `unknown_tokens.fraction_of` the evaluation halves.
    num_bytes: `num_scored_bytes` of each client's evaluation half; None with
      images.

  Returns:
    JSON values without NaN. Of each fraction: loss and accuracy after
    personalization over clients, perplexity as exp of the mean loss, the mean
    loss of the tenth of the clients that have the highest, bits per byte of all
    scored text together, and the share of clients whose loss personalization
    raised. A client whose loss it made non-finite counts among these; None at
    fraction 0.

  Raises:
    ValueError: If `kind` is neither, or a client comes twice at a fraction.
  """
  require(kind in KINDS, 'kind', f'one of {KINDS}', kind)
  bootstrap = {'num_bootstrap': 2000, 'seed': 0}
  clients = _sorted_unique(clients)
  by_fraction = {}
  for client in clients:
    by_fraction.setdefault(client.fraction, []).append(client)
  return {
    'schema_version': _SCHEMA_VERSION,
    'kind': kind,
    'corpus': corpus,
    'corpus_identity': corpus_identity and dict(corpus_identity),
    'checkpoint': dict(checkpoint),
    'num_clients': len({client.client_id for client in clients}),
    'skipped_clients': dict(sorted(skipped_clients.items())),
    'unknown_token_fraction': unknown_token_fraction,
    'personalization': dict(personalization),
    'bootstrap': bootstrap,
    'fractions': [
      _summarize_fraction(fraction, by_fraction[fraction], num_bytes, bootstrap)
      for fraction in sorted(by_fraction)
    ],
    'client_server_barrier': (
      None if barriers is None else summarize_barriers(barriers, **bootstrap)
    ),
    'effective_clients': effective_clients and dict(effective_clients),
  }


def summarize_barriers(
  barriers: Sequence[ClientBarrier], *, num_bootstrap: int, seed: int
) -> dict[str, Any]:
  """Computes `client_server_barrier` of `summary.json`.

  Args:
    barriers: One entry per client of the cohort, in any order.
    num_bootstrap: Resamples of the intervals, >= 1.
    seed: Their seed.

  Returns:
    `loss` and `error`, each as `statistics.summarize` returns it over the
    clients whose losses are finite; `local_loss` and `global_loss`, the `mean`
    of each of the two terms; and `num_clients`, all of them.

  Raises:
    ValueError: If a client comes twice.
  """
  bootstrap = {'num_bootstrap': num_bootstrap, 'seed': seed}
  barriers = _sorted_unique(barriers)
  losses = [b.global_loss - b.local_loss for b in barriers]
  # (1 - global accuracy) - (1 - local accuracy).
  errors = [
    b.local_accuracy - b.global_accuracy if math.isfinite(loss) else math.nan
    for b, loss in zip(barriers, losses, strict=True)
  ]
  pairs = zip(barriers, losses, strict=True)
  finite = [barrier for barrier, loss in pairs if math.isfinite(loss)]
  return {
    'loss': statistics.summarize(losses, **bootstrap),
    'error': statistics.summarize(errors, **bootstrap),
    'local_loss': _mean([b.local_loss for b in finite]),
    'global_loss': _mean([b.global_loss for b in finite]),
    'num_clients': len(barriers),
  }


def _mean(values):
  return {'mean': math.fsum(values) / len(values) if values else None}


def write_evaluation(
  directory: str | os.PathLike,
  summary: Mapping[str, Any],
  clients: Iterable[ClientEvaluation],
  barriers: Iterable[ClientBarrier] | None = None,
  affinities: Sequence[Affinity] = (),
) -> None:
  """Writes the directory of an evaluation; it appears whole or not at all.

  Args:
    directory: Must not exist, or be empty.
    summary: Of `summarize_evaluation`.
    clients: Its rows; written in the order of client id and fraction.
    barriers: One per client. None: no barrier.csv is written.
    affinities: One per pair, in the order to write. (): no affinity.csv is
      written.

  Raises:
    UserError: If `directory` holds something, is a file or cannot be written.
    ValueError: If a client comes twice, or `summary` holds a NaN.
  """
  directory = files.require_usable_output(directory, '--output')
  json.dumps(summary, allow_nan=False)
  with files.write_directory_atomically(directory) as temporary:
    # Elsewhere it is always the global model.
    without = () if summary.get('kind') in OWN_ROWS else ('model',)
    _write_rows(
      temporary / _CLIENTS_FILE,
      ClientEvaluation,
      _sorted_unique(clients),
      without,
    )
    if affinities:
      _write_rows(temporary / _AFFINITIES_FILE, Affinity, affinities)
    if barriers is not None:
      write_barriers(temporary / _BARRIERS_FILE, barriers)
    files.write_json(temporary / _SUMMARY_FILE, summary)


def read_evaluation(directory: str | os.PathLike) -> Evaluation:
  """Reads the directory of an evaluation.

  Raises:
    UserError: If it is none, is of a newer version, or a file is damaged.
  """
  directory = pathlib.Path(directory)
  barriers = directory / _BARRIERS_FILE
  affinities = directory / _AFFINITIES_FILE
  return Evaluation(
    summary=_read_summary(directory / _SUMMARY_FILE),
    clients=_read_rows(directory / _CLIENTS_FILE, ClientEvaluation),
    barriers=read_barriers(barriers) if barriers.exists() else None,
    affinities=_read_rows(affinities, Affinity) if affinities.exists() else [],
  )


def write_barriers(
  path: str | os.PathLike, barriers: Iterable[ClientBarrier]
) -> None:
  """Writes a row per client of a cohort; the file appears whole or not at all.

  Rows are in the order of client id. The file's directory must exist.

  Raises:
    ValueError: If a client comes twice.
  """
  _write_rows(pathlib.Path(path), ClientBarrier, _sorted_unique(barriers))


def read_barriers(path: str | os.PathLike) -> list[ClientBarrier]:
  """Reads what `write_barriers` wrote; an empty line is a file without clients.

  Raises:
    UserError: If there is no such file, or a line of it is damaged.
  """
  path = pathlib.Path(path)
  if path.is_file() and path.read_bytes() in (b'\n', b'\r\n'):
    return []
  return _read_rows(path, ClientBarrier)


def _summarize_fraction(
  fraction: float,
  clients: Sequence[ClientEvaluation],
  num_bytes: Mapping[bytes, int] | None,
  bootstrap: Mapping[str, int],
) -> dict[str, Any]:
  losses = [client.loss_after for client in clients]
  loss = statistics.summarize(losses, **bootstrap)
  # A diverged model still has an accuracy, that of its NaNs: it goes with the
  # loss.
  accuracy = [
    client.accuracy_after if math.isfinite(client.loss_after) else math.nan
    for client in clients
  ]
  # `not <=`: a loss that is nan afterwards is worse than one that was finite.
  hurt = [
    not client.loss_after <= client.loss_before
    for client in clients
    if math.isfinite(client.loss_before)
  ]
  return {
    'fraction': fraction,
    'loss': loss,
    'accuracy': statistics.summarize(accuracy, **bootstrap),
    'perplexity': {'of_mean_loss': _exp(loss['mean'])},
    'worst_decile_loss': statistics.worst_decile(losses),
    'bits_per_byte': num_bytes and _bits_per_byte(clients, num_bytes),
    'share_of_clients_hurt': (
      sum(hurt) / len(hurt) if hurt and fraction > 0 else None
    ),
  }


def _bits_per_byte(clients, num_bytes):
  """Returns that of all clients with a finite loss; None: without a byte."""
  scored = [c for c in clients if math.isfinite(c.loss_after)]
  total = sum(num_bytes[c.client_id] for c in scored)
  nats = math.fsum(c.loss_after * c.num_evaluation_tokens for c in scored)
  return nats / math.log(2) / total if total else None


def _exp(value: float | None) -> float | None:
  try:
    return None if value is None else math.exp(value)
  except OverflowError:
    return None


def _sorted_unique(rows: Iterable[Any]) -> list[Any]:
  """Returns rows in the order of client id and fraction, each only once."""

  def key(row):
    return row.client_id, getattr(row, 'fraction', None)

  by_key = {}
  for row in rows:
    if key(row) in by_key:
      raise ValueError(
        f'Client {client_id_to_text(row.client_id)!r} must come once (per '
        'fraction), but comes twice.'
      )
    by_key[key(row)] = row
  return [by_key[k] for k in sorted(by_key)]


def _write_rows(
  path: pathlib.Path,
  kind: type,
  rows: Iterable[Any],
  without: Collection[str] = (),
) -> None:
  names = [f.name for f in dataclasses.fields(kind) if f.name not in without]
  cells = ([_cell(getattr(row, name)) for name in names] for row in rows)
  with files.write_atomically(path) as file:
    file.write(files.csv_file(names, cells))


def _cell(value: bytes | str | float | int) -> str | float | int:
  return client_id_to_cell(value) if isinstance(value, bytes) else value


def _read_rows(path: pathlib.Path, kind: type) -> list[Any]:
  fields = dataclasses.fields(kind)
  parsers = {
    field.name: text_to_client_id if field.type is bytes else field.type
    for field in fields
  }
  rows = []
  try:
    with open(path, encoding='utf-8', newline='') as file:
      reader = csv.DictReader(file, strict=True)
      found = reader.fieldnames or ()
      required = {f.name for f in fields if f.default is dataclasses.MISSING}
      if missing := required.difference(found):
        raise ValueError(f'column {min(missing)!r} is missing')
      parsers = {n: parse for n, parse in parsers.items() if n in found}
      for row in reader:
        if None in row or None in row.values():
          raise ValueError('it has not one cell per column')
        rows.append(kind(**{n: parse(row[n]) for n, parse in parsers.items()}))
  except FileNotFoundError as error:
    raise UserError(_not_an_evaluation(path)) from error
  except (ValueError, csv.Error) as error:
    raise UserError(
      f'{str(path)!r} must hold one evaluated client per line, but line '
      f'{max(reader.line_num, 1)} does not ({error}). Restore the file, or '
      'evaluate again.'
    ) from error
  return rows


def _read_summary(path: pathlib.Path) -> dict[str, Any]:
  try:
    summary = files.parse_json(path.read_text(encoding='utf-8'))
    version = summary['schema_version']
  except (FileNotFoundError, NotADirectoryError) as error:
    raise UserError(_not_an_evaluation(path)) from error
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(
      f'{str(path)!r} must be the summary of an evaluation, but is damaged '
      f'({error}). Restore the file, or evaluate again.'
    ) from error
  if not isinstance(version, int) or version > _SCHEMA_VERSION:
    raise UserError(
      f'{str(path)!r} has schema version {version}, but this fedfish reads '
      f'versions up to {_SCHEMA_VERSION}. Use the version of fedfish that '
      'wrote it, or a newer one.'
    )
  return summary


def _not_an_evaluation(path: pathlib.Path) -> str:
  return (
    f'{str(path.parent)!r} must be the directory of an evaluation, but '
    f'{path.name} is not in it. Name a directory that `fedfish evaluate` wrote.'
  )
