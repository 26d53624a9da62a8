"""`summary.json` of an evaluation: its fields, and how they are computed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish import json_values
from tff_fedfish.errors import require_one_of
from tff_fedfish.evaluation import intervals
from tff_fedfish.evaluation.intervals import ClientStatistics
from tff_fedfish.evaluation.options import OWN_ROWS
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation
from tff_fedfish.run.corpus_identity import CorpusIdentity

KINDS = ('held_out', 'participating', *OWN_ROWS, 'transfer')
"""Held-out clients; clients that trained; the same, each on its own test or
validation rows; clients of another corpus."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FractionScores:
  """Scores after personalization on a fraction; every client counts once."""

  fraction: float
  loss: ClientStatistics
  accuracy: ClientStatistics
  """Over the clients with a finite loss."""
  perplexity: dict[str, float | None]
  """`of_mean_loss`: exp of the mean loss."""
  worst_decile_loss: float | None
  """Mean loss of the tenth of the clients that have the highest."""
  bits_per_byte: float | None
  """Bits per byte of all scored text together; None with images."""
  share_of_clients_hurt: float | None
  """Fraction of clients whose loss is higher than before, or not finite; None
  at fraction 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mean:
  """A mean over clients; None where there is none."""

  mean: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BarrierSummary:
  """The Client-Server Barrier over the clients with finite losses.

  Dhawan et al. (2024), FedFish, eq. 5: global minus local loss, and the same
  for error = 1 - accuracy. Positive is worse.
  """

  loss: ClientStatistics
  error: ClientStatistics
  local_loss: Mean
  global_loss: Mean
  num_clients: int
  """Clients measured, with whatever loss."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """Contents of `summary.json`, in their order.

  Raises:
    ValueError: On construction, if `kind` or `checkpoint` is wrong.
  """

  schema_version: int = 1
  kind: str
  """One of `KINDS`."""
  corpus: str
  """Display name of the corpus that the clients come from."""
  corpus_identity: CorpusIdentity
  checkpoint: dict[str, Any]
  """`round` of the model; `directory` of a model without a run."""
  num_clients: int
  skipped_clients: dict[str, int]
  """Clients that were left out, by reason."""
  skipped_sequences: int | None = None
  """Sequences of the evaluated clients that were left out, beyond
  `--max_sequences_per_client`. None: an earlier version did not count them."""
  unknown_token_fraction: float | None
  """Fraction of unknown tokens in the scored text; None with images."""
  personalization: dict[str, Any]
  """Settings of the fine-tuning, and of what was scored."""
  bootstrap: dict[str, int]
  fractions: tuple[FractionScores, ...]
  """In ascending order."""
  client_server_barrier: BarrierSummary | None
  """None: not measured."""

  def __post_init__(self):
    require_one_of('kind', self.kind, KINDS)
    json_values.from_json(int, self.checkpoint.get('round'), 'checkpoint.round')

  @property
  def round_num(self) -> int:
    """Round of the checkpoint that was scored."""
    return self.checkpoint['round']

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the JSON object of `summary.json`."""
    identity = self.corpus_identity.to_json_dict()
    return dataclasses.asdict(self) | {'corpus_identity': identity}


def summarize_evaluation(
  clients: Sequence[ClientEvaluation],
  *,
  barriers: Sequence[ClientBarrier] | None = None,
  unknown_token_fraction: float | None = None,
  num_bytes: Mapping[bytes, int] | None = None,
  skipped_clients: Mapping[str, int],
  **facts: Any,
) -> Summary:
  """Summarizes an evaluation; every client counts once.

  Args:
    clients: One entry per client and fraction, in any order.
    barriers: One entry per client of the cohort. None: not measured.
    unknown_token_fraction: See `Summary`.
    num_bytes: Bytes of the scored text of each client. None: images.
    skipped_clients: See `Summary`.
    **facts: The other fields of `Summary`: kind, corpus, corpus_identity,
      checkpoint, personalization, skipped_sequences.
  """
  by_fraction: dict[float, list[ClientEvaluation]] = {}
  for client in sorted(clients, key=lambda row: row.client_id):
    by_fraction.setdefault(client.fraction, []).append(client)
  return Summary(
    num_clients=len({client.client_id for client in clients}),
    skipped_clients=dict(sorted(skipped_clients.items())),
    unknown_token_fraction=unknown_token_fraction,
    bootstrap={
      'num_bootstrap': intervals.NUM_BOOTSTRAP,
      'seed': intervals.SEED,
    },
    fractions=tuple(
      _summarize_fraction(fraction, by_fraction[fraction], num_bytes)
      for fraction in sorted(by_fraction)
    ),
    client_server_barrier=(
      None if barriers is None else summarize_barriers(barriers)
    ),
    **facts,
  )


def summarize_barriers(barriers: Sequence[ClientBarrier]) -> BarrierSummary:
  """Summarizes the barriers of a cohort's clients, given in any order."""
  barriers = sorted(barriers, key=lambda row: row.client_id)
  losses = [b.global_loss - b.local_loss for b in barriers]
  # (1 - global accuracy) - (1 - local accuracy).
  errors = [
    b.local_accuracy - b.global_accuracy if math.isfinite(loss) else math.nan
    for b, loss in zip(barriers, losses, strict=True)
  ]
  finite = [b for b in barriers if math.isfinite(b.global_loss - b.local_loss)]
  return BarrierSummary(
    loss=intervals.summarize(losses),
    error=intervals.summarize(errors),
    local_loss=_mean([b.local_loss for b in finite]),
    global_loss=_mean([b.global_loss for b in finite]),
    num_clients=len(barriers),
  )


def _summarize_fraction(
  fraction: float,
  clients: Sequence[ClientEvaluation],
  num_bytes: Mapping[bytes, int] | None,
) -> FractionScores:
  losses = [client.loss_after for client in clients]
  loss = intervals.summarize(losses)
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
  return FractionScores(
    fraction=fraction,
    loss=loss,
    accuracy=intervals.summarize(accuracy),
    perplexity={'of_mean_loss': _exp(loss.mean)},
    worst_decile_loss=intervals.worst_decile(losses),
    bits_per_byte=num_bytes and _bits_per_byte(clients, num_bytes),
    share_of_clients_hurt=(
      sum(hurt) / len(hurt) if hurt and fraction > 0 else None
    ),
  )


def _bits_per_byte(clients, num_bytes):
  """Returns that of all clients with a finite loss; None: without a byte."""
  scored = [c for c in clients if math.isfinite(c.loss_after)]
  total = sum(num_bytes[c.client_id] for c in scored)
  nats = math.fsum(c.loss_after * c.num_evaluation_tokens for c in scored)
  return nats / math.log(2) / total if total else None


def _mean(values):
  return Mean(mean=math.fsum(values) / len(values) if values else None)


def _exp(value: float | None) -> float | None:
  try:
    return None if value is None else math.exp(value)
  except OverflowError:
    return None
