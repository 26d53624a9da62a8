"""The rows of the clients that take part in training, in any process."""

import dataclasses
import functools
import os
import shlex
from collections.abc import Sequence
from typing import Any

from tff_fedfish.config.data_settings import (
  ClientSplitsConfig,
  DataConfig,
  PartitionConfig,
)
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import client_splits, merged_clients, places
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.data.divided_clients import DividedClients, shuffled_targets
from tff_fedfish.data.merged_clients import Merge, MergedClients
from tff_fedfish.data.sequences import ClientRows, Rows
from tff_fedfish.data.stored_sequences import StoredSequences
from tff_fedfish.data.token_store import TokenStore, open_text
from tff_fedfish.data.tokenizers import Tokenizer, load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.run.corpus_identity import Corpus


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSource:
  """Settings that make rows of a corpus; values only, sent to workers."""

  data: DataConfig
  partition: PartitionConfig
  client_splits: ClientSplitsConfig
  split_seed: int
  partition_seed: int
  validation_fraction: float
  test_fraction: float

  @property
  def merge(self) -> Merge | None:
    """The groups that become one client; None: each is its own."""
    if not self.partition.merges_groups:
      return None
    return Merge(
      num_clients=self.partition.num_clients,
      partition_seed=self.partition_seed,
      split_seed=self.split_seed,
      held_out_fraction=self.client_splits.held_out_fraction,
    )

  def open(self, directory: str | os.PathLike) -> Corpus:
    """Opens a corpus; raises UserError if there is none."""
    if not self.data.holds_images:
      return open_text(directory)
    # Late: what reads the formats of images is of no use to text.
    from tff_fedfish.data.images.load import load_image_corpus

    partition = self.partition.build(partition_seed=self.partition_seed)
    return load_image_corpus(
      self.data.corpus,
      directory,
      partition=partition,
      held_out='whole' if partition is None else self.partition.held_out,
    )

  def split(self, corpus: Corpus) -> ClientSplit:
    """Splits the clients of a run's own corpus."""
    split = client_splits.split_clients(
      corpus.client_ids,
      split_seed=self.split_seed,
      held_out_fraction=self.client_splits.held_out_fraction,
      own_held_out=corpus.held_out,
    )
    fraction = self.client_splits.validation_clients_fraction
    return client_splits.with_validation(split, self.split_seed, fraction)

  def training_clients(self, split: ClientSplit) -> Sequence[bytes]:
    """Returns the clients that take part in training, in a fixed order."""
    if self.partition.merges_groups:
      return merged_clients.client_ids(self.partition.num_clients)
    return split.participating

  def require_tokens(self, corpus: Corpus) -> None:
    """Raises UserError where groups are to be merged but not tokenized."""
    if self.partition.merges_groups and not isinstance(corpus, TokenStore):
      directory = str(corpus.directory)
      command = ['fedfish', 'tokenize', directory, '--vocabulary']
      command.append(str(self.data.vocabulary))
      if places.is_remote(directory):
        command += '--output', 'DIR'
      raise UserError(
        "`--config.partition.scheme` 'merge' must be given the tokens of a "
        f'corpus, but {directory!r} is a grouped corpus. Run '
        f'`{shlex.join(command)}` and name its output.'
      )

  def client_rows(
    self,
    corpus: Corpus,
    tokenizer: Tokenizer | None,
    sequence_length: int | None = None,
  ) -> ClientRows:
    """Returns all rows of the clients of a corpus.

    Images are rows already. Sequences are as long as in training, unless
    `sequence_length` says another number of tokens.

    Raises:
      UserError: If the corpus is a token store of another vocabulary.
    """
    if tokenizer is None:
      return corpus
    is_stored = isinstance(corpus, TokenStore)
    kind = StoredSequences if is_stored else ClientSequences
    return kind(
      corpus,
      tokenizer,
      sequence_length=sequence_length or self.data.sequence_length,
      drop_short_block=self.data.drop_short_block,
      sampling=self.data.sampling,
    )

  def training_rows(
    self, corpus: Corpus, tokenizer: Tokenizer | None
  ) -> ClientRows:
    """Returns the rows of the clients that take part in training.

    Rows for validation and tests are left out.

    Raises:
      UserError: If clients are merged and the corpus is no token store.
    """
    self.require_tokens(corpus)
    rows = self.client_rows(corpus, tokenizer)
    if self.merge is not None:
      rows = MergedClients(corpus, rows, self.merge)
    if not self.validation_fraction and not self.test_fraction:
      return rows
    return self.with_test_rows(corpus, rows)

  def with_test_rows(self, corpus: Corpus, rows: ClientRows) -> DividedClients:
    """Returns the rows of `training_rows` with their parts and test rows.

    Rows that have them are returned.
    """
    if isinstance(rows, DividedClients):
      return rows
    client_ids = self.training_clients(self.split(corpus))
    targets = None
    if self.client_splits.shuffles_targets and len(client_ids) > 1:
      targets = shuffled_targets(client_ids, split_seed=self.split_seed)
    return DividedClients(
      rows,
      client_ids=client_ids,
      split_seed=self.split_seed,
      validation_fraction=self.validation_fraction,
      test_fraction=self.test_fraction,
      test_twins=corpus.twins if self.partition.has_twins else None,
      target_of=targets,
    )


def row_source(config: TrainConfig) -> RowSource:
  """Returns the settings of a config that make rows."""
  validation, test = config.row_fractions
  return RowSource(
    data=config.data,
    partition=config.partition,
    client_splits=config.client_splits,
    split_seed=config.seeds.split_seed,
    partition_seed=config.seeds.partition_seed,
    validation_fraction=validation,
    test_fraction=test,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRows(ClientRows):
  """Rows of a corpus that a worker process opens for itself, once."""

  source: RowSource
  """With paths as the workers see them."""

  def training_sequences(self, client_id: bytes, **options: Any) -> Rows:
    """See `ClientRows`."""
    return _open_stored(self.source).training_sequences(client_id, **options)

  def validation_sequences(self, client_id: bytes) -> Rows:
    """See `DividedClients`."""
    return _open_stored(self.source).validation_sequences(client_id)


@functools.lru_cache(maxsize=1)
def _open_stored(source):
  vocabulary = source.data.vocabulary
  tokenizer = None if vocabulary is None else load_tokenizer(vocabulary)
  return source.training_rows(source.open(source.data.directory), tokenizer)
