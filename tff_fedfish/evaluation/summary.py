"""`summary.json` of an evaluation: facts; `statistics` has the numbers."""

import dataclasses
from typing import Any

from tff_fedfish import json_values
from tff_fedfish.errors import require_one_of
from tff_fedfish.evaluation.options import OWN_ROWS
from tff_fedfish.printing import count
from tff_fedfish.run.corpus_identity import CorpusIdentity

KINDS = ('held_out', 'participating', *OWN_ROWS, 'transfer')
"""Held-out clients; clients that trained; the same, each on its own test or
validation rows; clients of another corpus."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlap:
  """Clients and documents of an evaluation that the run trained on."""

  clients: int
  """Evaluated clients whose id is that of a client that trained."""
  num_clients: int
  documents: int | None = None
  """Documents of a sample of those of the evaluated clients that stand among
  the documents of training that were read. None: they cannot be compared."""
  num_documents: int | None = None
  num_training_documents: int | None = None
  """Documents of training that were read: all, or a sample of many."""

  def line(self) -> str:
    """Returns the counts as a line to print."""
    what = 'Overlap with the training corpus'
    num_documents = self.documents or 0, self.num_documents or 0
    # More than a tenth of the clients, or of the documents.
    for known, number in ((self.clients, self.num_clients), num_documents):
      if 10 * known > number:
        what = 'Overlaps with training'
    line = f'{what}: {self.clients:,} of {count(self.num_clients, "client")}'
    if self.documents is not None:
      line += (
        f', {self.documents:,} of {count(self.num_documents, "document")} '
        f'({self.num_training_documents:,} of training read)'
      )
    return line


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
  num_scored_bytes: int | None = None
  """UTF-8 bytes of all scored text; None with images, or by an earlier
  version."""
  overlap: Overlap | None = None
  """None: on the run's own corpus, or where it cannot be told."""
  personalization: dict[str, Any]
  """Settings of the fine-tuning, and of what was scored."""

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
