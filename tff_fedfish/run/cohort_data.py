"""Data of the clients of a round, as a function of config and round."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Protocol

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import merged_clients
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.cohorts import draw_cohort
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.partitions import Partition
from tff_fedfish.data.merged_clients import Merge
from tff_fedfish.data.sequences import ClientRows, Rows
from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient

# At the end of a run, for the client that is being tokenized ahead.
_MAX_WAIT_SECONDS = 10


class Source(Protocol):
  """Source of the clients' sequences or images."""

  def open(self) -> ClientRows:
    """Returns the clients' sequences or images."""


@dataclasses.dataclass(frozen=True)
class InMemorySource:
  """Sequences or images that this process has opened."""

  client_rows: ClientRows

  def open(self) -> ClientRows:
    """Returns them."""
    return self.client_rows


@dataclasses.dataclass(frozen=True)
class TextCorpusSource:
  """Names what a worker process opens for itself, once."""

  corpus: str
  """The grouped corpus's directory, as the workers see it."""
  vocabulary: str
  """Directory of the vocabulary, as the workers see it."""
  sequence_length: int
  drop_short_block: bool
  merge: Merge | None = None
  """None: every group is a client."""

  def open(self) -> ClientRows:
    """Returns the sequences; the second time the same object."""
    return _open_stored(self)


@functools.lru_cache(maxsize=1)
def _open_stored(source):
  from tff_fedfish.data.grouped_corpus import GroupedCorpus
  from tff_fedfish.data.tokenizers import load_tokenizer

  corpus = GroupedCorpus(source.corpus)
  groups = ClientSequences(
    corpus,
    load_tokenizer(source.vocabulary),
    sequence_length=source.sequence_length,
    drop_short_block=source.drop_short_block,
  )
  if source.merge is None:
    return groups
  # The driver has counted the rows: here they are counted again only where the
  # cache of its user is not this one.
  return merged_clients.open_merged_clients(corpus, groups, source.merge)


@dataclasses.dataclass(frozen=True)
class ImageCorpusSource:
  """Names the corpus of images that a worker process opens for itself, once."""

  corpus: str
  """Which one it is."""
  directory: str
  """Directory of its files, as the workers see it."""
  partition: Partition | None
  held_out: str
  """See `load_image_corpus`."""

  def open(self) -> ImageClients:
    """Returns the images; the second time the same object."""
    return _open_stored_images(self)


@functools.lru_cache(maxsize=1)
def _open_stored_images(source):
  from tff_fedfish.data.images.loading import load_image_corpus

  return load_image_corpus(
    source.corpus,
    source.directory,
    partition=source.partition,
    held_out=source.held_out,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingClient(ClientLoader):
  """One client in one round; reads and tokenizes when it is loaded."""

  client_id: bytes
  source: Source
  round_num: int
  shuffle_seed: int
  max_sequences: int | None
  batch_size: int
  stream_length: int | None = None
  """See `rows_of_round` in data/sequences.py."""
  samples_labels: bool = False
  """Whether rows need seeds to draw labels from. Those of images have them
  anyway, the same ones."""

  def sequences(self) -> Rows:
    """Returns what the client trains on, shuffled and capped."""
    rows = self.source.open().training_sequences(
      self.client_id,
      shuffle_seed=self.shuffle_seed,
      round_num=self.round_num,
      max_sequences=self.max_sequences,
      stream_length=self.stream_length,
    )
    if not self.samples_labels:
      return rows
    return sequences_lib.with_noise(
      rows, self.shuffle_seed, self.round_num, self.client_id
    )

  def load(self) -> LoadedClient:
    """Returns the batches, and how much the cap and the last block cut."""
    sequences = self.sequences()
    return LoadedClient(
      sequences_lib.to_dataset(sequences, self.batch_size),
      {
        'num_dropped_sequences': sequences.num_dropped_sequences,
        'num_dropped_tokens': sequences.num_lost_tokens,
      },
    )


def cohort(
  config: TrainConfig,
  participating: Sequence[bytes],
  source: Source,
  round_num: int,
) -> list[TrainingClient]:
  """Returns the cohort of a round in the order of the draw.

  Args:
    config: The run's config.
    participating: Clients that may be drawn. Where the config says no size, all
      of them are the cohort, in their order.
    source: Their sequences or images.
    round_num: 1-based round.
  """
  work, client_ids = config.client_work, participating
  if config.cohorts.cohort_size is not None:
    client_ids = draw_cohort(
      participating,
      seed=config.seeds.cohort_seed,
      round_num=round_num,
      cohort_size=config.cohorts.cohort_size,
    )
  return [
    TrainingClient(
      client_id=client_id,
      source=source,
      round_num=round_num,
      shuffle_seed=config.seeds.shuffle_seed,
      max_sequences=work.max_sequences_per_client,
      stream_length=None if work.num_local_steps is None else work.max_rows,
      batch_size=work.local_batch_size,
      samples_labels=config.algorithm.samples_labels,
    )
    for client_id in client_ids
  ]


class Prefetcher:
  """Tokenizes the next cohort in a thread while a round runs.

  What it loads stays in the cache of `ClientSequences`. A client that cannot be
  loaded is passed over: the round that needs it counts it.
  """

  def __init__(self):
    """Starts nothing yet."""
    self._wanted: list[TrainingClient] = []
    self._lock = threading.Lock()
    self._thread = None

  def __enter__(self) -> 'Prefetcher':
    return self

  def __exit__(self, *_) -> None:
    with self._lock:
      self._wanted = []
      thread = self._thread
    if thread is not None:
      # A thread that is in TensorFlow while Python ends may take it down.
      thread.join(_MAX_WAIT_SECONDS)

  def start(self, clients: Sequence[TrainingClient]) -> None:
    """Begins to load clients; what was not yet loaded before is dropped."""
    with self._lock:
      self._wanted = list(clients)
      if self._thread is None:
        self._thread = threading.Thread(
          target=self._load, name='prefetch', daemon=True
        )
        self._thread.start()

  def _load(self):
    while True:
      with self._lock:
        if not self._wanted:
          # Within the lock, so that `start` then begins another thread.
          self._thread = None
          return
        client = self._wanted.pop(0)
      with contextlib.suppress(Exception):
        client.sequences()
