"""Data of the clients of a round, as a function of config and round."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_fedfish.config.data_settings import DataConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import merged_clients, places
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.client_splits import split_clients
from tff_fedfish.data.cohorts import draw_cohort
from tff_fedfish.data.images.partitions import Partition
from tff_fedfish.data.merged_clients import Merge, MergedClients
from tff_fedfish.data.sequences import ClientRows, Rows
from tff_fedfish.data.token_store import open_text
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.run import (
  private_rounds,
  row_division,
  run_directory,
  run_inputs,
)
from tff_fedfish.run.candidates import Candidates
from tff_fedfish.run.client_inputs import ClientInputs, KeptTensors
from tff_fedfish.run.private_rounds import PrivateRounds
from tff_fedfish.run.row_division import Division
from tff_fedfish.runtime.client_data import (
  CANDIDATES,
  LOCAL_PRIVACY,
  VALIDATION,
  ClientLoader,
  LoadedClient,
)


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
  division: Division | None = None
  """None: clients train on all of their rows."""
  held_out_fraction: float | None = None
  """See `split_clients`."""

  def training_sequences(self, client_id: bytes, **options: Any) -> Rows:
    """See `ClientRows`."""
    return _open_stored(self).training_sequences(client_id, **options)

  def validation_sequences(self, client_id: bytes) -> Rows:
    """See `DividedClients`."""
    return _open_stored(self).validation_sequences(client_id)


def rows_for_engine(
  config: TrainConfig, client_rows: ClientRows, vocabulary: pathlib.Path
) -> ClientRows:
  """Returns the rows with which the rounds of a run are fed.

  In process those that are opened; workers open the corpus, and the run's own
  vocabulary, themselves.
  """
  if config.engine.kind == 'in_process':
    return client_rows
  directory = places.absolute(config.data.directory)
  data = dataclasses.replace(config.data, directory=directory)
  division = row_division.division_of(config)
  shared = dict(
    division=None if division.is_whole else division,
    held_out_fraction=config.client_splits.held_out_fraction,
  )
  if data.holds_images:
    options = run_inputs.image_options(config)
    return StoredRows(data=data, **options, **shared)
  data = dataclasses.replace(data, vocabulary=str(vocabulary.resolve()))
  return StoredRows(data=data, merge=run_inputs.merge_of(config), **shared)


def paths_of_workers(config: TrainConfig, workdir: pathlib.Path) -> list[str]:
  """Returns files and directories that workers on other hosts read."""
  directory = places.absolute(config.data.directory)
  paths = [] if places.is_remote(directory) else [directory]
  if not config.data.holds_images:
    paths.append(str(workdir / run_directory.VOCABULARY_NAME))
  if config.kept_slots or config.phases:
    # Stands for states and features beside it, which change.
    paths.append(str(workdir / run_directory.CONFIG_NAME))
  return paths


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
  kept: KeptTensors | None = None
  """Tensors that it kept. None: clients keep nothing."""
  validation_batch_size: int | None = None
  """Rows of its validation batches. None: it is not given validation rows."""
  candidates: Candidates | None = None
  """Models that it is given. None: clients are given none."""
  private: PrivateRounds | None = None
  """How it takes rows by DP-SGD. None: it does not train by it."""

  def sequences(self) -> Rows:
    """Returns what the client trains on, shuffled and capped."""
    return self.client_rows.training_sequences(
      self.client_id,
      shuffle_seed=self.shuffle_seed,
      round_num=self.round_num,
      max_sequences=self.max_sequences,
      stream_length=self.stream_length,
      full_batches_of=None if self.batches == 'ragged' else self.batch_size,
      repeats_rows=self.batches == 'repeat_full',
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
    if self.validation_batch_size is not None:
      inputs[VALIDATION] = sequences_lib.to_dataset(
        self._validation_rows(sequences), self.validation_batch_size
      )
    if self.candidates is not None:
      inputs[CANDIDATES] = self.candidates.dataset()
    if private is not None:
      inputs[LOCAL_PRIVACY] = private.client_input(len(sequences), *of_round)
    if inputs:
      data = collections.OrderedDict(data=data, **inputs)
    return LoadedClient(data, counts)

  def _validation_rows(self, sequences):
    """Returns the validation rows, with the features of those it trains on."""
    rows = self.client_rows.validation_sequences(self.client_id)
    if sequences.is_repeated is not None:
      rows = dataclasses.replace(rows, is_repeated=np.zeros(len(rows), bool))
    if sequences.noise_seeds is not None:
      seeds = np.zeros((len(rows), 2), np.int32)
      rows = dataclasses.replace(rows, noise_seeds=seeds)
    return rows


def cohort(
  config: TrainConfig,
  participating: Sequence[bytes],
  client_rows: ClientRows,
  round_num: int,
  kept: ClientInputs | None = None,
) -> list[TrainingClient]:
  """Returns the cohort of a round, counted from 1, in the order of the draw.

  Args:
    config: The run's.
    participating: Clients that may be drawn. Where the config says no size, all
      of them are the cohort, in their order.
    client_rows: Their rows.
    round_num: The round.
    kept: What clients kept before it. None: they keep nothing.
  """
  return [
    training_client(config, client_id, client_rows, round_num, kept)
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


def training_client(
  config: TrainConfig,
  client_id: bytes,
  client_rows: ClientRows,
  round_num: int,
  kept: ClientInputs | None = None,
) -> TrainingClient:
  """Returns one client in a round; see `cohort`."""
  work, personal = config.client_work, config.method.personal(config)
  private = private_rounds.of_config(config)
  is_drawn = private is not None and private.draws_batches
  inputs = {} if kept is None else kept.inputs_of(client_id, round_num)
  return TrainingClient(
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
    validation_batch_size=(
      config.evaluation.batch_size if personal and personal.validates else None
    ),
    private=private,
    **inputs,
  )


@functools.lru_cache(maxsize=1)
def _open_stored(stored):
  corpus, rows = _open_whole(stored)
  if stored.division is None:
    return rows
  client_ids = split_clients(
    corpus.client_ids,
    split_seed=stored.division.split_seed,
    held_out_fraction=stored.held_out_fraction,
    own_held_out=corpus.held_out,
  ).participating
  if stored.merge is not None:
    client_ids = merged_clients.client_ids(stored.merge.num_clients)
  return stored.division.divide(rows, client_ids, corpus.twins)


def _open_whole(stored):
  data = stored.data
  if data.holds_images:
    from tff_fedfish.data.images.load import load_image_corpus

    corpus = load_image_corpus(
      data.corpus,
      data.directory,
      partition=stored.partition,
      held_out=stored.held_out,
    )
    return corpus, corpus
  corpus = open_text(data.directory)
  tokenizer = load_tokenizer(data.vocabulary)
  groups = run_inputs.client_sequences(data, corpus, tokenizer)
  if stored.merge is None:
    return corpus, groups
  return corpus, MergedClients(corpus, groups, stored.merge)
