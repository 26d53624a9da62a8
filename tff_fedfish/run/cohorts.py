"""Data of the clients of a round, as a function of config and round."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.cohorts import draw_cohort
from tff_fedfish.data.sequences import ClientRows, Rows
from tff_fedfish.run.candidates import Candidates
from tff_fedfish.run.client_inputs import ClientInputs, KeptTensors
from tff_fedfish.run.private import PrivateRounds, private_rounds
from tff_fedfish.runtime.client_data import (
  CANDIDATES,
  LOCAL_PRIVACY,
  ROUNDING_SEED,
  VALIDATION,
  ClientLoader,
  LoadedClient,
)


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
  is_quantized: bool = False
  """Whether its delta is rounded."""

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
    if self.is_quantized:
      inputs[ROUNDING_SEED] = self._rounding_seed()
    if inputs:
      data = collections.OrderedDict(data=data, **inputs)
    return LoadedClient(data, counts)

  def _rounding_seed(self):
    import tensorflow as tf

    seed = randomness.generator(
      'delta_rounding', self.shuffle_seed, self.round_num, self.client_id
    ).randint(2**31, size=2, dtype=np.int64)
    return tf.data.Dataset.from_tensors(tf.constant(seed.astype(np.int32)))

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
  privacy = private_rounds(config)
  is_drawn = privacy is not None and privacy.draws_batches
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
    private=privacy,
    is_quantized=config.aggregation.is_quantized,
    **inputs,
  )
