"""Settings of a run's clients: their data, cohorts and splits."""

import dataclasses
import typing
from typing import Literal

from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.fields import SET, Section, number, path, setting

if typing.TYPE_CHECKING:
  from tff_fedfish.data.images.partitions import Partition

_TEXT = {'read_with': {'corpus': ('grouped_text',)}}
_MERGE = 'merge'
_DIRICHLET = (
  'per_class_over_clients',
  'per_client_over_classes_normalised',
  'per_client_sampling',
)
_SHARDS = {'scheme': ('pathological_shards',)}
IMAGE_SCHEMES = (
  *_DIRICHLET,
  'fixed_classes',
  'pathological_shards',
  'latent_distributions',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Section, section='data'):
  """Text or images of the clients, and the rows made of them."""

  directory: str = path(may_change=True)
  """A grouped corpus of `fedfish group`, here or in a store such as s3://, or
  its tokens, of `fedfish tokenize`; or the published files of an image corpus;
  or your own images as CLIENT/CLASS/*.png or *.jpg. A resumed run may read the
  same corpus elsewhere, or its tokens."""
  corpus: Literal[('grouped_text', *IMAGE_CORPORA)] = 'grouped_text'
  """'grouped_text', or the name of an image corpus (docs/image_corpora.md)."""
  vocabulary: str | None = path(None, required=True, may_change=True, **_TEXT)
  """A vocabulary of `fedfish tokenizer train`, or 'demo', the one that ships.
  A resumed run may read the same one elsewhere."""
  sequence_length: int | None = number(
    None, at_least=1, below=2**24, **_TEXT, required=True
  )
  """Tokens that the model sees at once; a stored block has one more."""
  drop_short_block: bool = setting(False, **_TEXT)
  """Drops a client's last, shorter block instead of padding and masking it."""
  client_batches: Literal['ragged', 'repeat_full', 'full_only'] = 'ragged'
  """Batches of a client in a round. 'ragged': the last one may be smaller.
  'repeat_full': rows are repeated up to max_sequences_per_client, so that all
  clients have equally many full batches, as in FedC4 (Charles et al., 2023).
  'full_only': the last, smaller batch is dropped, and a client with fewer rows
  than a batch has none. Scores and fine-tuning do not change."""
  sampling: Literal['blocks', 'documents'] = setting('blocks', **_TEXT)
  """Text of a client that has more than max_sequences_per_client. 'blocks':
  its joined text is cut into blocks, which are shuffled; every token is equally
  likely. 'documents': its documents are shuffled, then joined and cut until
  there is enough, as in FedC4; large clients are not tokenized whole, and
  counts of dropped tokens cover only what was."""

  @property
  def holds_images(self) -> bool:
    """Whether the corpus is one of images."""
    return self.corpus in IMAGE_CORPORA


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionConfig(Section, section='partition'):
  """Division of a corpus among clients that are not its own."""

  scheme: Literal[_MERGE, *IMAGE_SCHEMES, None] = None
  """Text: 'merge' makes each client of the groups that a hash chooses; held-out
  groups stay as they are. Requires tokens in `data.directory`. Images: a scheme
  of docs/image_corpora.md. None: the corpus's own clients."""
  num_clients: int | None = number(
    None, at_least=1, read_with={'scheme': SET}, required=True
  )
  """Clients to make of the groups or images for training."""
  held_out: Literal['matching', 'whole'] = setting(
    'matching', read_with={'scheme': IMAGE_SCHEMES}
  )
  """Held-out clients, of the test images. 'matching': one per client, with its
  fraction of every class. 'whole': one in all."""
  alpha: float | None = number(
    None, at_least=1e-9, read_with={'scheme': _DIRICHLET}, required=True
  )
  """Concentration of the Dirichlet distribution."""
  min_examples: int | None = number(
    None, at_least=0, read_with={'scheme': ('per_class_over_clients',)}
  )
  """Images of the smallest client, at least."""
  classes_per_client: int | None = number(
    None, at_least=1, read_with={'scheme': ('fixed_classes',)}, required=True
  )
  """Classes of each client."""
  shards_per_client: int | None = number(
    None, at_least=1, required=True, read_with=_SHARDS
  )
  """Shards of each client."""

  @property
  def merges_groups(self) -> bool:
    """Whether clients are unions of groups of text."""
    return self.scheme == _MERGE

  @property
  def divides_images(self) -> bool:
    """Whether clients are made of an image corpus."""
    return self.scheme is not None and not self.merges_groups

  @property
  def has_twins(self) -> bool:
    """Whether each client has a held-out one of the same distribution."""
    return self.divides_images and self.held_out == 'matching'

  def build(self, *, partition_seed: int) -> 'Partition | None':
    """Returns the partition of an image corpus; None without a scheme."""
    if self.scheme is None:
      return None
    # Late: text need not wait for NumPy.
    from tff_fedfish.data.images.partitions import Partition

    parameters = self.changed()
    for name in ('scheme', 'num_clients', 'held_out'):
      parameters.pop(name, None)
    return Partition(
      scheme=self.scheme,
      num_clients=self.num_clients,
      seed=partition_seed,
      parameters=tuple(parameters.items()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortsConfig(Section, section='cohorts'):
  """Clients of a round."""

  cohort_size: int | None = number(at_least=1)
  """Clients drawn per round without replacement. None: all that are not held
  out, in a fixed order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSplitsConfig(Section, section='client_splits'):
  """Clients, and rows of other clients, that are not trained on."""

  held_out_fraction: float | None = number(0.1, at_least=0, below=1)
  """Fraction of training clients to hold out. None (image corpora only):
  evaluate on the corpus's own test clients. Test clients are never trained on;
  with a fraction they are not evaluated either."""
  validation_clients_fraction: float = number(
    0.0, at_least=0, below=1, read_with={'evaluation.num_clients': SET}
  )
  """Fraction of the held-out clients, by a hash, to choose the best round and
  to stop by (`checkpoints.keep_best`, `training.patience`): columns
  validation/*. They are never evaluated otherwise. 0: held-out clients choose,
  who are evaluated, too."""
  validation_fraction: float | None = number(None, at_least=0, below=1)
  """Fraction of every participating client's rows on which methods validate
  personal models. No method trains on them. None: 0.2 for a method that
  validates, else 0."""
  test_fraction: float | None = number(None, at_least=0, below=1)
  """Fraction of every participating client's rows on which its personal model
  is scored. No method trains on them. None: 0.2 for a method with personal
  models, else 0; also 0 with `partition.held_out` 'matching', where the rows of
  the matching held-out client are scored instead."""
  shuffles_targets: bool = False
  """Permutes validation and test rows among the clients, by
  `seeds.split_seed`: targets outside the distribution that a client trains
  on."""
