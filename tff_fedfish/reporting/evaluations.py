"""Evaluations of a run, checked and typed: `evaluations/NAME`."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tff_fedfish import json_values
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import (
  KINDS,
  Affinity,
  ClientBarrier,
  ClientEvaluation,
  read_evaluation,
)
from tff_fedfish.evaluation.statistics import worst_decile
from tff_fedfish.run.corpus_identity import CorpusIdentity


@dataclasses.dataclass(frozen=True)
class Interval:
  """A mean over clients with its 95 % interval, where one was computed."""

  mean: float
  """Over clients, and over seeds where runs were repeated."""
  ci_low: float | None = None
  ci_high: float | None = None
  seed_means: tuple[tuple[str, float], ...] = ()
  """(seeds of a run, its mean) of the runs that it is of."""

  def shown_ends(self, show: Callable[[float], str]) -> str:
    """Returns 'LOW to HIGH', each as `show` says it; '' without an interval."""
    if self.ci_low is None:
      return ''
    return f'{show(self.ci_low)} to {show(self.ci_high)}'


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
  """One evaluation directory, or the mean of those of several seeds."""

  name: str
  kind: str
  """'held_out', 'participating', 'own_test' or 'transfer'."""
  corpus: str
  """Name of the corpus whose clients were scored; in a report, different for
  different corpora."""
  round_num: int | None
  """Round of the checkpoint that was scored; None if not given."""
  num_clients: int | None
  """Clients scored."""
  scores: dict[tuple[float, str], Interval | None]
  """(fraction of the client's data, 'loss' in nats, 'accuracy' in [0, 1] or
  'bits_per_byte') -> score after personalization on it."""
  clients: pd.DataFrame
  """Rows of per_client.csv with finite losses; columns are the fields of
  `ClientEvaluation`, without `model`."""
  barrier: dict[str, Interval]
  """Mean Client-Server Barrier in 'loss' and 'error', and its terms
  'local_loss' and 'global_loss'; may be empty."""
  barrier_clients: pd.DataFrame
  """See `client_barriers`."""
  num_non_finite_rows: int
  """Rows of both files that were left out as non-finite."""
  affinities: pd.DataFrame
  """Finite rows of affinity.csv; columns are the fields of `Affinity`. May be
  empty."""
  model: str
  """'personal' if each client was scored with its own model, otherwise
  'global'."""
  skipped_clients: dict[str, int]
  """Clients that were not scored, by reason."""
  personalization: dict[str, Any]
  """Settings of the fine-tuning, by name."""
  has_barrier: bool
  """Whether the barrier was measured, with whatever result."""
  effective_clients: Interval | None = None
  """Effective number of clients of the mean of a weight in the round that was
  replayed, over all weights; None: not measured."""
  hurt: Mapping[float, float] = dataclasses.field(default_factory=dict)
  """Fraction above 0 -> share of clients whose loss personalization raised, or
  made non-finite."""
  unknown_tokens: float | None = None
  """Fraction of unknown tokens in what was scored; None: of images, or not
  counted."""
  identity: CorpusIdentity | None = None
  """Identity of the corpus; None: of an older version."""
  num_seeds: int = 1
  """Runs whose evaluations this one stands for."""
  num_left_out_clients: int = 0
  """Clients that were not scored, or not with a finite loss, in some of these
  runs and therefore count in none."""

  @property
  def fractions(self) -> list[float]:
    """Fractions of the client's data that were personalized on, ascending."""
    return sorted({fraction for fraction, _ in self.scores})

  def clients_at(self, fraction: float | None) -> pd.DataFrame:
    """Returns the rows of `clients` at one fraction."""
    return self.clients[self.clients['fraction'] == fraction]

  def spread(self, fraction: float) -> dict[str, float]:
    """Returns how losses spread over clients, personalized on a fraction.

    Returns:
      'p10', 'p50', 'p90', percentiles over clients with finite losses; 'worst',
      the mean of the tenth that is highest; above fraction 0 'hurt', the share
      of clients whose loss is higher than before. Empty without a client.
    """
    rows = self.clients_at(fraction)
    losses = rows['loss_after']
    if losses.empty:
      return {}
    found = {f'p{q}': losses.quantile(q / 100) for q in (10, 50, 90)}
    found['worst'] = worst_decile(losses)
    if fraction > 0:
      found['hurt'] = (losses > rows['loss_before']).mean()
    return {name: float(value) for name, value in found.items()}

  def largest_client_fraction(self) -> float | None:
    """Returns the largest personalization fraction in per_client.csv."""
    fractions = self.clients['fraction']
    return max(fractions[fractions > 0], default=None)


def load_evaluation(directory: pathlib.Path, seeds: str = '') -> Evaluation:
  """Returns the evaluation in a directory that `fedfish evaluate` wrote.

  Each mean keeps `Run.seeds`.

  Raises:
    UserError: If a file is missing, damaged or of a newer schema.
  """
  found = read_evaluation(directory)
  summary = _Checked(directory / 'summary.json', found.summary, seeds)
  if (kind := summary.values.get('kind')) not in KINDS:
    raise summary.error('kind', f'one of {", ".join(KINDS)}', kind)
  clients = _finite_rows(found.clients, ClientEvaluation)
  models = sorted({client.model for client in found.clients})
  if models not in ([], ['global'], ['personal']):
    raise UserError(
      f"{str(directory / 'per_client.csv')!r}: `model` must be 'personal' or "
      f"'global' in all rows, but is {', '.join(models)}. Repeat the "
      'evaluation, or remove this directory.'
    )
  barriers = client_barriers(found.barriers or ())
  num_rows = len(found.clients) + len(found.barriers or ())
  barrier = summary.object('client_server_barrier')
  skipped = summary.object('skipped_clients')
  means = {
    name: barrier.interval(name)
    for name in ('loss', 'error', 'local_loss', 'global_loss')
  }
  counts = {reason: skipped.count(reason) for reason in skipped.values}
  return Evaluation(
    name=directory.name,
    kind=kind,
    corpus=str(summary.values.get('corpus', 'unnamed corpus')),
    round_num=summary.object('checkpoint').count('round'),
    num_clients=summary.count('num_clients'),
    scores=summary.scores(),
    # Means of clients' rows are taken, and there is none of a word.
    clients=clients.drop(columns='model'),
    affinities=_finite_rows(found.affinities, Affinity),
    model=next(iter(models), 'global'),
    barrier={name: mean for name, mean in means.items() if mean},
    barrier_clients=barriers,
    num_non_finite_rows=num_rows - len(clients) - len(barriers),
    skipped_clients={reason: n for reason, n in counts.items() if n},
    personalization=summary.object('personalization').values,
    has_barrier=bool(barrier.values) or found.barriers is not None,
    effective_clients=summary.interval('effective_clients'),
    hurt=summary.hurt(),
    unknown_tokens=summary.number('unknown_token_fraction'),
    identity=summary.identity(),
  )


def client_barriers(rows: Sequence[ClientBarrier]) -> pd.DataFrame:
  """Returns the barriers of those clients whose numbers are all finite.

  Columns are the fields of `ClientBarrier`, and `loss` and `error`, global
  minus local: positive is worse. Error is 1 - accuracy: (1 - global) -
  (1 - local).
  """
  found = _finite_rows(rows, ClientBarrier)
  return found.assign(
    loss=found['global_loss'] - found['local_loss'],
    error=found['local_accuracy'] - found['global_accuracy'],
  )


def _finite_rows(rows: Sequence[Any], kind: type) -> pd.DataFrame:
  fields = dataclasses.fields(kind)
  table = pd.DataFrame(rows, columns=[field.name for field in fields])
  # Those with a default are not in files of an earlier version.
  required = (f for f in fields if f.default is dataclasses.MISSING)
  numbers = table[[field.name for field in required if field.type is float]]
  return table[np.isfinite(numbers.astype(float)).all(axis=1)]


class _Checked:
  """An object of a parsed file; a wrong type in it is a UserError."""

  def __init__(self, path: pathlib.Path, values: dict[str, Any], seeds: str):
    self._path, self._seeds = path, seeds
    self.values = values

  def object(self, name: str) -> '_Checked':
    value = self._get(name, dict, 'an object') or {}
    return _Checked(self._path, value, self._seeds)

  def number(self, name: str) -> float | None:
    value = self._get(name, int | float, 'a number')
    return value if value is not None and math.isfinite(value) else None

  def count(self, name: str) -> int | None:
    value = self.number(name)
    return None if value is None else int(value)

  def interval(self, name: str) -> Interval | None:
    found = self.object(name)
    mean, *ends = map(found.number, ('mean', 'ci_low', 'ci_high'))
    if mean is None:
      return None
    low, high = (None, None) if None in ends else ends
    return Interval(mean, low, high, ((self._seeds, mean),))

  def identity(self) -> CorpusIdentity | None:
    value = self.values.get('corpus_identity')
    try:
      return json_values.from_json(CorpusIdentity | None, value, '')
    except json_values.WrongValueError as error:
      raise self.error('corpus_identity', 'a corpus', value) from error

  def scores(self) -> dict[tuple[float, str], Interval | None]:
    scores = {}
    for entry in self._get('fractions', list, 'a list') or []:
      if not isinstance(entry, dict):
        raise self.error('fractions', 'a list of objects', entry)
      found = _Checked(self._path, entry, self._seeds)
      fraction = found.number('fraction')
      if fraction is None:
        raise self.error('fractions', 'a list with `fraction` in each', entry)
      for measure in ('loss', 'accuracy'):
        scores[float(fraction), measure] = found.interval(measure)
      if (bits := found.number('bits_per_byte')) is not None:
        interval = Interval(bits, seed_means=((self._seeds, bits),))
        scores[float(fraction), 'bits_per_byte'] = interval
    return scores

  def hurt(self) -> dict[float, float]:
    entries = (
      _Checked(self._path, entry, self._seeds)
      for entry in self.values.get('fractions') or []
    )
    shares = {
      entry.number('fraction'): entry.number('share_of_clients_hurt')
      for entry in entries
    }
    return {f: share for f, share in shares.items() if share is not None}

  def error(self, name: str, required: str, found: Any) -> UserError:
    return UserError(
      f'{str(self._path)!r}: `{name}` must be {required}, but is '
      f'{repr(found)[:60]}. Repeat the evaluation, or remove this directory.'
    )

  def _get(self, name: str, kind: Any, required: str) -> Any:
    value = self.values.get(name)
    is_wrong = isinstance(value, bool) or not isinstance(value, kind)
    if value is not None and is_wrong:
      raise self.error(name, required, value)
    return value
