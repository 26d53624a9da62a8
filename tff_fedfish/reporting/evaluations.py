"""Evaluations of a run, checked and typed: `evaluations/NAME`."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tff_fedfish.evaluation.intervals import worst_decile
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.evaluation.summary import Summary
from tff_fedfish.evaluation.tables import ClientBarrier, as_table
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
  summary = found.summary
  clients = _finite(found.clients)
  models = sorted(set(found.clients['model']))
  barriers = client_barriers(found.barriers)
  num_rows = len(found.clients)
  num_rows += 0 if found.barriers is None else len(found.barriers)
  means, measured = {}, summary.client_server_barrier
  if measured is not None:
    for name in ('loss', 'error', 'local_loss', 'global_loss'):
      means[name] = _interval(getattr(measured, name), seeds)
  return Evaluation(
    name=directory.name,
    kind=summary.kind,
    corpus=summary.corpus,
    round_num=summary.round_num,
    num_clients=summary.num_clients,
    scores=_scores(summary, seeds),
    # Means of clients' rows are taken, and there is none of a word.
    clients=clients.drop(columns='model'),
    affinities=_finite(found.affinities),
    model=next(iter(models), 'global'),
    barrier={name: mean for name, mean in means.items() if mean},
    barrier_clients=barriers,
    num_non_finite_rows=num_rows - len(clients) - len(barriers),
    skipped_clients={r: n for r, n in summary.skipped_clients.items() if n},
    personalization=summary.personalization,
    has_barrier=measured is not None or found.barriers is not None,
    effective_clients=_interval(summary.effective_clients, seeds),
    hurt={
      row.fraction: row.share_of_clients_hurt
      for row in summary.fractions
      if row.share_of_clients_hurt is not None
    },
    unknown_tokens=summary.unknown_token_fraction,
    identity=summary.corpus_identity,
  )


def client_barriers(rows: pd.DataFrame | None) -> pd.DataFrame:
  """Returns the barriers of those clients whose numbers are all finite.

  Columns are the fields of `ClientBarrier`, and `loss` and `error`, global
  minus local: positive is worse. Error is 1 - accuracy: (1 - global) -
  (1 - local).
  """
  found = _finite(as_table(ClientBarrier, []) if rows is None else rows)
  return found.assign(
    loss=found['global_loss'] - found['local_loss'],
    error=found['local_accuracy'] - found['global_accuracy'],
  )


def _finite(table: pd.DataFrame) -> pd.DataFrame:
  numbers = table.select_dtypes('float64')
  return table[np.isfinite(numbers).all(axis=1)]


def _interval(found: Any, seeds: str) -> Interval | None:
  if found is None or found.mean is None:
    return None
  low, high = getattr(found, 'ci_low', None), getattr(found, 'ci_high', None)
  return Interval(found.mean, low, high, ((seeds, found.mean),))


def _scores(
  summary: Summary, seeds: str
) -> dict[tuple[float, str], Interval | None]:
  scores = {}
  for row in summary.fractions:
    for measure in ('loss', 'accuracy'):
      interval = _interval(getattr(row, measure), seeds)
      scores[row.fraction, measure] = interval
    if (bits := row.bits_per_byte) is not None:
      interval = Interval(bits, seed_means=((seeds, bits),))
      scores[row.fraction, 'bits_per_byte'] = interval
  return scores
