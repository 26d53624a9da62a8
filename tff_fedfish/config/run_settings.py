"""Settings of a run: model, privacy, seeds, length, scores, engine."""

import dataclasses
from typing import Literal

from models.image_model_config import IMAGE_MODELS
from models.transformer_config import FROM_DIRECTORY, PRESETS
from tff_fedfish.fields import SET, Section, number, path, seed, setting
from tff_fedfish.rounds.compression import FLOAT_BITS

TEXT_PRESETS = (*PRESETS, 'custom', FROM_DIRECTORY)
"""Values of `model.preset` for text."""

_TEXT = {'read_with': {'preset': TEXT_PRESETS}}
_DP_SGD = {'read_with': {'clip_norm': SET}}
_IS_TEXT = {'read_with': {'data.corpus': ('grouped_text',)}}
_KEPT = dict(changes_results=False, may_change=True)
_OF_WORKERS = {'read_with': {'kind': ('ray',)}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Section, section='model'):
  """The model. Sizes left at None become the preset's or the vocabulary's."""

  preset: Literal[*TEXT_PRESETS, *IMAGE_MODELS]
  """A preset (below), of which the sizes given here replace its own; 'custom':
  all sizes but the vocabulary's are given here; 'from_directory': those of
  `training.start_from` (docs/export.md). For images one of the last five, which
  read nothing else of this section."""
  num_layers: int | None = number(None, at_least=1, **_TEXT)
  """Blocks of attention and MLP."""
  width: int | None = number(None, at_least=1, **_TEXT)
  """Size of the residual stream, a multiple of `num_heads`."""
  num_heads: int | None = number(None, at_least=1, **_TEXT)
  """Attention heads."""
  vocabulary_size: int | None = number(None, at_least=1, **_TEXT)
  """Token ids, special ones included. None: those of `data.vocabulary`; the
  preset's while there is no such vocabulary yet."""
  position_embedding: Literal['learned', 'rotary'] = setting('learned', **_TEXT)
  """'learned' (one vector per position) or 'rotary' (no weights)."""
  compute_dtype: Literal['float32', 'bfloat16'] = setting('float32', **_TEXT)
  """Type of the matrix products; the weights stay float32."""

  def __post_init__(self):
    super().__post_init__()
    for name, value in PRESETS.get(self.preset, {}).items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, value)

  @property
  def sizes(self) -> dict[str, int | None]:
    """The settings that a text preset sets, by name."""
    return {name: getattr(self, name) for name in PRESETS['tiny']}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalPrivacyConfig(Section, section='local_privacy'):
  """DP-SGD in the client: gradients of single rows, clipped, with noise."""

  clip_norm: float = number(0.0, at_least=0)
  """Bound C on the L2 norm of the gradient of one row, over all weights; longer
  gradients are scaled down to it before they are added up (docs/privacy.md).
  0: clients train without DP-SGD."""
  noise_multiplier: float = number(0.0, at_least=0, **_DP_SGD)
  """Standard deviation of the noise in each sum of clipped gradients, as a
  multiple of `clip_norm`. 0: gradients are clipped only."""
  delta: float = number(1e-5, above=0, below=1, **_DP_SGD)
  """Delta at which epsilon is reported."""
  sampling: Literal['shuffled', 'poisson'] = setting('shuffled', **_DP_SGD)
  """Rows of a batch. 'shuffled': passes over the client's rows; a last, smaller
  batch is dropped. 'poisson': each step takes every row with the probability
  local_batch_size / rows, which is what epsilon assumes."""

  @property
  def is_on(self) -> bool:
    """Whether clients train by DP-SGD."""
    return self.clip_norm > 0

  @property
  def adds_noise(self) -> bool:
    """Whether there is an epsilon."""
    return self.noise_multiplier > 0

  @property
  def draws_batches(self) -> bool:
    """Whether batches are drawn, and so may have any number of rows."""
    return self.sampling == 'poisson'


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregationConfig(Section, section='aggregation'):
  """Compression of the clients' uploads."""

  bits: Literal[32, 8, 4] = 32
  """Bits per weight of a client's delta; the server sends float32. 8 and 4:
  values are rounded at random to one of 255 or 15 levels, so that the mean is
  unbiased, with a float32 scale for each row of a matrix (docs/runs.md). Of
  FedFish also: one Fisher weight per element takes 8 bits, per unit 32."""

  @property
  def is_quantized(self) -> bool:
    """Whether deltas are rounded."""
    return self.bits != FLOAT_BITS


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedsConfig(Section, section='seeds'):
  """One seed per purpose."""

  model_seed: int = seed(1)
  """Initial weights."""
  cohort_seed: int = seed(2)
  """The clients of each round."""
  split_seed: int = seed(3)
  """Held-out clients, their personalization and evaluation sets, and the rows
  of other clients that are not trained on."""
  shuffle_seed: int = seed(4)
  """Order of a client's sequences in a round, rounding of its delta; with
  images also dropout and distortions."""
  partition_seed: int = seed(5)
  """The partition of a corpus."""
  privacy_seed: int = seed(6)
  """Noise and drawn batches of DP-SGD. Whoever knows it can remove the noise
  again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(Section, section='training'):
  """Length and start of a run."""

  num_rounds: int = number(at_least=1, below=10**8, may_change=True)
  """The last round; a resumed run may only raise it."""
  patience: int | None = number(
    None,
    at_least=1,
    may_change=True,
    read_with={
      'evaluation.num_clients': SET,
      'evaluation.every_num_rounds': SET,
    },
  )
  """Stop after this many evaluations in a row without a lower loss. None: run
  all rounds."""
  max_non_finite_rounds: int = number(10, at_least=0, **_KEPT)
  """Stop after this many rounds in a row in which no client with data returned
  a finite update, or the mean update was not finite. 0: never stop."""
  start_from: str | None = path(None)
  """Weights that a new run begins with: a checkpoint, a run (its last
  checkpoint), or a directory with a GPT-2 of transformers
  (docs/export.md). Text requires the same vocabulary. A head for another
  number of classes is drawn; of more positions than the run has, the first are
  taken. The server optimizer starts fresh. None: weights are drawn. Not read
  again when a run is resumed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Section, section='evaluation'):
  """Scores while a run trains, on a fixed sample of clients."""

  every_num_rounds: int = number(
    at_least=0, changes_results=False, read_with={'num_clients': SET}
  )
  """Score every N rounds, and always round 0 and the last. 0: only those."""
  num_clients: int = number(at_least=0, changes_results=False)
  """Held-out clients in the sample; of a method with personal models the first
  participating clients, each scored on its own test rows. 0: no scores during
  training."""
  max_sequences_per_client: int = number(64, at_least=0, changes_results=False)
  """Most sequences of a client, half of them scored; of a client's own test
  rows all are. 0: all."""
  split_unit: Literal['documents', 'sequences'] = setting(
    'documents', changes_results=False, **_IS_TEXT
  )
  """Unit of the halves of a held-out client, one of which is scored: whole
  documents, or 'sequences', blocks of the joined text."""
  batch_size: int = number(16, at_least=1)
  """Sequences per step of an evaluation or of a client's validation; changes
  the speed, and the last bits of losses."""
  barrier_every_num_rounds: int = number(0, at_least=0, changes_results=False)
  """Measure the Client-Server Barrier every N rounds and after the last round.
  0 disables it. Each measurement takes about as long as one single-worker
  round: the clients train again in the driver process."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsConfig(Section, section='checkpoints'):
  """Checkpoints to save and to keep."""

  every_num_rounds: int = number(at_least=0, **_KEPT)
  """Save every N rounds, and always round 0 and the last. 0: only those."""
  keep_last: int = number(0, at_least=0, **_KEPT)
  """Latest checkpoints to keep, besides that of round 0. 0: all."""
  keep_every_num_rounds: int = number(
    0, at_least=0, read_with={'keep_last': SET}, **_KEPT
  )
  """Also keep the checkpoints of every Nth round. 0: none."""
  keep_best: bool = setting(
    False, read_with={'evaluation.num_clients': SET}, **_KEPT
  )
  """Also save and keep the evaluated round with the lowest loss, `RUN@best`
  (docs/runs.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(Section, section='engine'):
  """Execution of the rounds."""

  kind: Literal['in_process', 'ray'] = setting(
    'in_process', changes_results=False
  )
  """'in_process', or 'ray': worker processes, on one machine or a cluster."""
  num_workers: int = number(1, at_least=1, **_KEPT, **_OF_WORKERS)
  """Worker processes; changes the speed only."""
  threads_per_worker: int = number(1, at_least=1, **_OF_WORKERS)
  """TensorFlow threads of a worker; may change the last bits."""
  gpus_per_worker: float | None = number(
    None, at_least=0, **_KEPT, **_OF_WORKERS
  )
  """GPUs that Ray reserves for a worker, such as 1 or 0.5. None: 1 where the
  cluster has one for every worker."""
  ray_address: str = setting('local', **_KEPT, **_OF_WORKERS)
  """'local' starts Ray on this machine; 'auto' or HOST:PORT joins a cluster."""
  num_partial_sums: int = number(0, at_least=0)
  """Parts of a cohort that are summed up one by one, which fixes the last bits
  of the result. 0: 1 in process, at most 8 with workers."""
  quorum: float = number(0.5, at_least=0, below=1, **_KEPT)
  """A round fails unless more than this fraction of its cohort took part."""
  xla: bool = setting(False, **_IS_TEXT)
  """Compiles forward and backward pass with XLA, for at most 8 layers; slower
  than without on a CPU."""
  deterministic_ops: bool = False
  """Trains with deterministic kernels of TensorFlow, which repeat a run's
  results on a GPU, more slowly. CPUs repeat them anyway."""
