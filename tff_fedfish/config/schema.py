"""Settings of a training run, with their units and bounds."""

import dataclasses
from typing import ClassVar, Literal

from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from models.transformer_config import PRESETS, TransformerConfig
from tff_fedfish.config import checks as config_checks
from tff_fedfish.config.data_settings import (
  IMAGE_SIZES,
  ClientSplitsConfig,
  CohortsConfig,
  DataConfig,
  PartitionConfig,
)
from tff_fedfish.config.optimizer_settings import OptimizerSettings
from tff_fedfish.config_fields import ConfigError, Section, number, seed
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig

# Of a cohort that several workers share, where the config does not say.
_MAX_PARTIAL_SUMS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientWorkConfig(OptimizerSettings):
  """Work of one client in one round."""

  section: ClassVar[str] = 'client_work'

  optimizer: Literal['sgd', 'adamw'] = 'sgd'
  """The client optimizer; its state starts from zero each round."""
  num_local_epochs: int = number(at_least=1)
  """Passes over the client's sequences per round. Unit: epochs, >= 1."""
  local_batch_size: int = number(4, at_least=1)
  """Sequences per local step, >= 1."""
  max_sequences_per_client: int | None = number(16, at_least=1)
  """Cap per client and round, after that round's shuffle, >= 1. None: all."""
  num_local_steps: int | None = number(None, at_least=1, below=10**7)
  """Local steps H per round, >= 1 and below 10^7. Each round takes the next H
  batches of the client's endless stream of shuffled passes. Requires
  num_local_epochs 1 and max_sequences_per_client None, and H times
  local_batch_size at most 10^8. None: the steps of num_local_epochs passes."""
  learning_rate: float = number(above=0)
  """Base learning rate of the client optimizer, > 0."""
  micro_batch_size: int | None = number(None, at_least=1)
  """Sequences of a batch that pass through the model at a time, >= 1; their
  gradients are averaged over the batch. Saves memory. `None`: all."""
  max_delta_norm: float | None = number(None, above=0)
  """Bound on the L2 norm of a client's model delta over all weights, > 0; a
  longer delta is scaled down to it. None: no bound."""

  @property
  def max_rows(self) -> int | None:
    """Sequences of a client in a round, at most; None: all that it has."""
    if self.num_local_steps is None:
      return self.max_sequences_per_client
    return self.num_local_steps * self.local_batch_size

  @property
  def max_batch_rows(self) -> int:
    """Sequences of a batch, at most."""
    return min(self.local_batch_size, self.max_rows or self.local_batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(OptimizerSettings):
  """The server optimizer, which takes the pseudo-gradient as its gradient."""

  section: ClassVar[str] = 'server'

  optimizer: Literal['adam', 'sgd', 'adagrad', 'adamw', 'yogi'] = 'adam'
  """The server optimizer. 'adagrad', 'yogi' and, with bias_correction false,
  'adam' are FedOpt's of Reddi et al. (2021), algorithm 2."""
  learning_rate: float = number(above=0)
  """Base learning rate of the server optimizer, > 0."""
  bias_correction: bool | None = None
  """Whether 'adam' corrects the bias of its moments; others must leave it out.
  None: true with 'adam'."""
  initial_accumulator: float = number(0.0, at_least=0)
  """Second moment before round 1 of 'adagrad', 'yogi' and 'adam' without bias
  correction, >= 0."""

  @property
  def corrects_bias(self) -> bool:
    """Whether 'adam' corrects the bias of its moments."""
    return self.bias_correction is not False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
  """The model. Sizes left at None become the preset's."""

  section: ClassVar[str] = 'model'

  preset: str
  """A name of `PRESETS` in models/transformer_config.py; 'custom': all four
  sizes are given here; for images 'emnist_cnn' or 'resnet18', which read
  nothing else of this section."""
  num_layers: int | None = number(None, at_least=1)
  """Blocks of attention and MLP, >= 1."""
  width: int | None = number(None, at_least=1)
  """Size of the residual stream, a multiple of `num_heads`."""
  num_heads: int | None = number(None, at_least=1)
  """Attention heads, >= 1."""
  vocabulary_size: int | None = number(None, at_least=1)
  """Token ids, special ones included; the vocabulary must have this size."""
  position_embedding: Literal['learned', 'rotary'] = 'learned'
  """'learned' (one vector a position) or 'rotary' (no weights)."""
  compute_dtype: Literal['float32', 'bfloat16'] = 'float32'
  """Type of the matrix products; the weights stay float32."""
  layer_loop: Literal['auto', 'unrolled', 'foldl'] = 'auto'
  """'unrolled' (fastest), 'foldl' (builds fast whatever the depth), 'auto'."""

  def cross_problems(self, *, are_fields_right: bool) -> list[str]:
    """See `Section`; also sets the sizes of the preset."""
    if not isinstance(self.preset, str):
      return []
    if self.preset == 'custom':
      return [
        f"`config.model.{name}` is required with preset 'custom'"
        for name in PRESETS['tiny']
        if getattr(self, name) is None
      ]
    if self.preset in PRESETS:
      for name, value in PRESETS[self.preset].items():
        if getattr(self, name) is None:
          object.__setattr__(self, name, value)
      return []
    if self.preset in IMAGE_MODELS:
      return [
        f'`config.model.{field.name}` must be left at {field.default} with '
        f'preset {self.preset!r}, found {value!r}'
        for field in dataclasses.fields(self)
        if field.name != 'preset'
        and (value := getattr(self, field.name)) != field.default
      ]
    return [
      f'`config.model.preset` must be one of {", ".join(PRESETS)}, custom, '
      f'{", ".join(IMAGE_MODELS)}, found {self.preset!r}'
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedsConfig(Section):
  """One seed per purpose, each in [0, 2^31)."""

  section: ClassVar[str] = 'seeds'

  model_seed: int = seed(1)
  """Initial weights."""
  cohort_seed: int = seed(2)
  """The clients of each round."""
  split_seed: int = seed(3)
  """Held-out clients, and their personalization and evaluation sets."""
  shuffle_seed: int = seed(4)
  """The order of a client's sequences in a round; with images the noise:
  dropout and distortions; with `fisher_estimator` 'true' the labels drawn."""
  partition_seed: int = seed(5)
  """The partition of a corpus."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(Section):
  """How long a run lasts."""

  section: ClassVar[str] = 'training'

  num_rounds: int = number(at_least=1, below=10**8)
  """The last round, >= 1. May grow when a run is resumed."""
  max_non_finite_rounds: int = number(10, at_least=0)
  """Stop after so many rounds in a row in which no client with data returned a
  finite update, or whose mean update was not finite. 0: never stop. May change
  when a run is resumed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Section):
  """The global model's score on a fixed sample of held-out clients."""

  section: ClassVar[str] = 'evaluation'

  every_num_rounds: int = number(at_least=0)
  """Round 0 and the last are always scored; 0: only those two."""
  num_clients: int = number(at_least=0)
  """Held-out clients in the sample; 0: no scores during training."""
  max_sequences_per_client: int = number(64, at_least=0)
  """Sequences used of a client, half of them scored; 0: all."""
  batch_size: int = number(16, at_least=1)
  """Sequences per evaluation step, >= 1; changes the speed only."""
  barrier_every_num_rounds: int = number(0, at_least=0)
  """Measure the Client-Server Barrier every N rounds and after the last round.
  0 disables it. Each measurement takes about as long as one single-worker
  round: the clients train again in the driver process."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsConfig(Section):
  """Checkpoints to save and to keep."""

  section: ClassVar[str] = 'checkpoints'

  every_num_rounds: int = number(at_least=0)
  """Round 0 and the last are always saved; 0: only those two."""
  keep_last: int = number(0, at_least=0)
  """Latest checkpoints kept beside round 0's; 0: all."""
  keep_every_num_rounds: int = number(0, at_least=0)
  """Checkpoints of multiples of this are kept beside those; 0: none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(Section):
  """Execution of the rounds."""

  section: ClassVar[str] = 'engine'

  kind: Literal['in_process', 'ray'] = 'in_process'
  """'in_process', or 'ray': worker processes, on one machine or a cluster."""
  num_workers: int = number(1, at_least=1)
  """Worker processes of kind 'ray', >= 1; changes the speed only."""
  threads_per_worker: int = number(1, at_least=1)
  """TensorFlow threads of a worker, >= 1; may change the last bits."""
  gpus_per_worker: float | None = number(None, at_least=0)
  """GPUs that Ray reserves for a worker, such as 1 or 0.5; None: 1 where the
  cluster has one for every worker."""
  ray_address: str = 'local'
  """'local' starts Ray on this machine; 'auto' or HOST:PORT joins a cluster."""
  num_partial_sums: int = number(0, at_least=0)
  """Parts into which a cohort is divided and summed up, which fixes the last
  bits of the result; 0: 1 in process, at most 8 with workers."""
  quorum: float = number(0.5, at_least=0, below=1)
  """A round fails unless more than this share of its cohort took part."""
  xla: bool = False
  """Compiles forward and backward pass with XLA, which takes unrolled layers;
  slower than without on a CPU."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
  """Everything that fixes a run's numbers; written into it as config.json.

  Raises:
    ConfigError: If settings of different sections do not go together.
  """

  algorithm: AlgorithmConfig
  """An instance of the method's own class, which `algorithm.name` chooses."""
  client_work: ClientWorkConfig
  server: ServerConfig
  model: ModelConfig
  data: DataConfig
  partition: PartitionConfig = PartitionConfig()
  cohorts: CohortsConfig
  client_splits: ClientSplitsConfig = ClientSplitsConfig()
  seeds: SeedsConfig = SeedsConfig()
  training: TrainingConfig
  evaluation: EvaluationConfig
  checkpoints: CheckpointsConfig
  engine: EngineConfig = EngineConfig()

  def __post_init__(self):
    problems = config_checks.problems_of(self)
    if problems:
      raise ConfigError(problems)

  @property
  def method(self) -> Method:
    """The declaration of the method, `algorithm.name`."""
    return registry.find(self.algorithm.name)

  @property
  def num_partial_sums(self) -> int:
    """Into how many parts a cohort is divided; `engine.num_partial_sums`."""
    wanted = self.engine.num_partial_sums
    if not wanted:
      wanted = 1 if self.engine.kind == 'in_process' else _MAX_PARTIAL_SUMS
    # A cohort of unknown size may still have fewer clients than parts.
    return min(wanted, self.cohort_size or wanted)

  @property
  def cohort_size(self) -> int | None:
    """Clients per round; None: as many as the corpus has."""
    if self.cohorts.cohort_size is None and self.partition.merges_groups:
      return self.partition.num_clients
    return self.cohorts.cohort_size

  @property
  def targets_per_row(self) -> int:
    """Largest number of targets of a sequence or an image."""
    return self.data.sequence_length or 1

  def model_shape(self) -> TransformerConfig | ImageModelConfig:
    """Returns the model's shape, of text or of images as the corpus is."""
    if not self.data.holds_images:
      return self.transformer_config()
    corpus = IMAGE_CORPORA[self.data.corpus]
    return ImageModelConfig(
      name=self.model.preset,
      num_classes=corpus.num_classes or len(self.data.class_names),
      image_shape=corpus.image_shape
      or tuple(getattr(self.data, n) for n in IMAGE_SIZES),
    )

  def transformer_config(self) -> TransformerConfig:
    """Returns a language model's shape: `data.sequence_length` positions.

    Raises:
      ValueError: If the sizes do not fit each other, or it is an image model.
    """
    if self.model.preset in IMAGE_MODELS:
      raise ValueError(
        'a transformer is required, but `config.model.preset` is '
        f'{self.model.preset!r}.'
      )
    sizes = dataclasses.asdict(self.model)
    del sizes['preset']
    return TransformerConfig(sequence_length=self.data.sequence_length, **sizes)
