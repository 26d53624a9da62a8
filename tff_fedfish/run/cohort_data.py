"""Data of the clients of a round, as a function of config and round."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tff_fedfish.config.data_settings import DataConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import merged_clients
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.cohorts import draw_cohort
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.images.partitions import Partition
from tff_fedfish.data.merged_clients import Merge
from tff_fedfish.data.sequences import ClientRows, Rows
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.run import private_rounds, run_inputs
from tff_fedfish.run.kept_tensors import KeptTensors
from tff_fedfish.run.private_rounds import PrivateRounds
from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRows(ClientRows):
  """Rows of a corpus that a worker process opens for itself, once."""

  data: DataConfig
  """With paths as the workers see them."""
  merge: Merge | None = None
  """None: every group of a text corpus is a client."""
  partition: Partition | None = None
  held_out: str = 'whole'
  """See `load_image_corpus`."""

  def training_sequences(self, client_id: bytes, **options: Any) -> Rows:
    """See `ClientRows`."""
    return _open_stored(self).training_sequences(client_id, **options)


def rows_for_engine(
  config: TrainConfig, client_rows: ClientRows, vocabulary: pathlib.Path
) -> ClientRows:
  """Returns the rows with which the rounds of a run are fed.

  In process those that are opened; workers open the corpus, and the run's own
  vocabulary, themselves.
  """
  if config.engine.kind == 'in_process':
    return client_rows
  directory = str(pathlib.Path(config.data.directory).resolve())
  data = dataclasses.replace(config.data, directory=directory)
  if data.holds_images:
    return StoredRows(data=data, **run_inputs.image_options(config))
  data = dataclasses.replace(data, vocabulary=str(vocabulary.resolve()))
  return StoredRows(data=data, merge=run_inputs.merge_of(config))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingClient(ClientLoader):
  """One client in one round; reads and tokenizes when it is loaded."""

  client_id: bytes
  client_rows: ClientRows
  round_num: int
  shuffle_seed: int
  max_sequences: int | None
  batch_size: int
  stream_length: int | None = None
  """See `rows_of_round` in data/sequences.py."""
  batches: str = 'ragged'
  """`data.client_batches`."""
  samples_labels: bool = False
  """Whether rows need seeds to draw labels from. Those of images have them
  anyway, the same ones."""
  kept: KeptTensors | None = None
  """Tensors that it kept. None: clients keep nothing."""
  private: PrivateRounds | None = None
  """How it takes rows by DP-SGD. None: it does not train by it."""

  def sequences(self) -> Rows:
    """Returns what the client trains on, shuffled and capped."""
    rows = self.client_rows.training_sequences(
      self.client_id,
      shuffle_seed=self.shuffle_seed,
      round_num=self.round_num,
      max_sequences=self.max_sequences,
      stream_length=self.stream_length,
      full_batches_of=None if self.batches == 'ragged' else self.batch_size,
      repeats_rows=self.batches == 'repeat_full',
    )
    if not self.samples_labels:
      return rows
    return sequences_lib.with_noise(
      rows, self.shuffle_seed, self.round_num, self.client_id
    )

  def load(self) -> LoadedClient:
    """Returns the batches, and how much the cap and the last block cut."""
    sequences, private = self.sequences(), self.private
    counts = {
      'num_dropped_sequences': sequences.num_dropped_sequences,
      'num_dropped_tokens': sequences.num_lost_tokens,
    }
    if self.batches == 'full_only':
      counts['num_clients_below_one_batch'] = int(
        not len(sequences) and sequences.num_dropped_sequences > 0
      )
    of_round = self.round_num, self.client_id
    if private is not None and private.draws_batches:
      data = private.to_dataset(sequences, *of_round)
      if not private.num_steps(len(sequences)):
        counts['num_dropped_sequences'] += len(sequences)
        counts['num_dropped_tokens'] += sequences.num_tokens
    else:
      data = sequences_lib.to_dataset(sequences, self.batch_size)
    inputs = {}
    if self.kept is not None:
      inputs['state'] = self.kept.datasets()
    if private is not None:
      inputs['local_privacy'] = private.client_input(len(sequences), *of_round)
    if inputs:
      data = collections.OrderedDict(data=data, **inputs)
    return LoadedClient(data, counts)


def cohort(
  config: TrainConfig,
  participating: Sequence[bytes],
  client_rows: ClientRows,
  round_num: int,
  kept_of: Callable[[bytes, int], KeptTensors | None] = lambda *_: None,
) -> list[TrainingClient]:
  """Returns the cohort of a round, counted from 1, in the order of the draw.

  Args:
    config: The run's.
    participating: Clients that may be drawn. Where the config says no size, all
      of them are the cohort, in their order.
    client_rows: Their rows.
    round_num: The round.
    kept_of: (client, round) -> what the client kept before it.
  """
  work, private = config.client_work, private_rounds.of_config(config)
  is_drawn = private is not None and private.draws_batches
  return [
    TrainingClient(
      client_id=client_id,
      client_rows=client_rows,
      round_num=round_num,
      shuffle_seed=config.seeds.shuffle_seed,
      max_sequences=None if is_drawn else work.max_sequences_per_client,
      stream_length=work.max_rows if config.marks_repeats else None,
      batch_size=work.local_batch_size,
      batches='full_only'
      if config.drops_last_batch
      else config.data.client_batches,
      samples_labels=config.algorithm.samples_labels,
      kept=kept_of(client_id, round_num),
      private=private,
    )
    for client_id in client_ids_of(config, participating, round_num)
  ]


def client_ids_of(
  config: TrainConfig, participating: Sequence[bytes], round_num: int
) -> Sequence[bytes]:
  """Returns the clients of a round; the arguments are those of `cohort`."""
  if config.cohorts.cohort_size is None:
    return participating
  return draw_cohort(
    participating,
    seed=config.seeds.cohort_seed,
    round_num=round_num,
    cohort_size=config.cohorts.cohort_size,
  )


@functools.lru_cache(maxsize=1)
def _open_stored(stored):
  data = stored.data
  if data.holds_images:
    from tff_fedfish.data.images.loading import load_image_corpus

    return load_image_corpus(
      data.corpus,
      data.directory,
      partition=stored.partition,
      held_out=stored.held_out,
    )
  corpus = GroupedCorpus(data.directory)
  groups = ClientSequences(
    corpus,
    load_tokenizer(data.vocabulary),
    sequence_length=data.sequence_length,
    drop_short_block=data.drop_short_block,
    sampling=data.sampling,
  )
  if stored.merge is None:
    return groups
  # The driver has counted the rows: here they are counted again only where the
  # cache of its user is not this one.
  return merged_clients.open_merged_clients(corpus, groups, stored.merge)
