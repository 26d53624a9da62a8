"""Settings of a training run, with their units and bounds."""

import copy
import dataclasses
from typing import Any, Literal

from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from models.transformer_config import (
  FROM_DIRECTORY,
  PRESETS,
  TransformerConfig,
)
from tff_fedfish.config.cross_checks import problems_of
from tff_fedfish.config.data_settings import (
  IMAGE_SIZES,
  ClientSplitsConfig,
  CohortsConfig,
  DataConfig,
  PartitionConfig,
)
from tff_fedfish.config.optimizer_settings import ClientWorkConfig, ServerConfig
from tff_fedfish.config.privacy_settings import LocalPrivacyConfig
from tff_fedfish.config_fields import (
  ConfigError,
  Section,
  number,
  path,
  seed,
  setting,
)
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import Phase, Slot
from tff_fedfish.methods.settings import AlgorithmConfig

# Of a cohort that several workers share, where the config does not say.
_MAX_PARTIAL_SUMS = 8
# Of a client's rows, for validation and for tests, where the config says none.
_PART_FRACTION = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Section, section='model'):
  """The model. Sizes left at None become the preset's."""

  preset: str
  """A name of `PRESETS` in models/transformer_config.py; 'custom': all four
  sizes are given here; 'from_directory': those of the directory that
  `training.start_from` names; for images 'emnist_cnn', 'resnet18', 'linear',
  'lenet' or 'fed_net_cnn', which read nothing else of this section."""
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
    if self.preset == FROM_DIRECTORY:
      return []
    if self.preset in PRESETS:
      for name, value in PRESETS[self.preset].items():
        if getattr(self, name) is None:
          object.__setattr__(self, name, value)
      return []
    if self.preset in IMAGE_MODELS:
      return [
        f'`config.model.{name}` must be left at {getattr(ModelConfig, name)} '
        f'with preset {self.preset!r}, found {value!r}'
        for name, value in self.changed().items()
        if name != 'preset'
      ]
    return [
      f'`config.model.preset` must be one of {", ".join(PRESETS)}, custom, '
      f'{FROM_DIRECTORY}, {", ".join(IMAGE_MODELS)}, found {self.preset!r}'
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedsConfig(Section, section='seeds'):
  """One seed per purpose, each in [0, 2^31)."""

  model_seed: int = seed(1)
  """Initial weights."""
  cohort_seed: int = seed(2)
  """The clients of each round."""
  split_seed: int = seed(3)
  """Held-out clients, their personalization and evaluation sets, and the rows
  of the other clients that are not trained on."""
  shuffle_seed: int = seed(4)
  """The order of a client's sequences in a round; with images the noise:
  dropout and distortions."""
  partition_seed: int = seed(5)
  """The partition of a corpus."""
  privacy_seed: int = seed(6)
  """The noise and the drawn batches of DP-SGD. Whoever knows it can take the
  noise away again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(Section, section='training'):
  """How long a run lasts."""

  num_rounds: int = number(at_least=1, below=10**8)
  """The last round, >= 1. May grow when a run is resumed."""
  max_non_finite_rounds: int = number(10, at_least=0, changes_results=False)
  """Stop after so many rounds in a row in which no client with data returned a
  finite update, or whose mean update was not finite. 0: never stop. May change
  when a run is resumed."""
  start_from: str | None = path(None)
  """Checkpoint of another run, or a run directory (its last checkpoint), or a
  directory with a GPT-2 of transformers, whose weights a new run begins with; a
  head for another number of classes is drawn, and of more positions than the
  run has, the first ones are taken. None: all weights are drawn. Not read again
  when a run is resumed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Section, section='evaluation'):
  """Scores of models while a run trains, on a fixed sample of clients."""

  every_num_rounds: int = number(at_least=0, changes_results=False)
  """Round 0 and the last are always scored; 0: only those two."""
  num_clients: int = number(at_least=0, changes_results=False)
  """Held-out clients in the sample; with models of clients' own, the first
  participating clients, each scored on its own test rows. 0: no scores during
  training."""
  max_sequences_per_client: int = number(64, at_least=0, changes_results=False)
  """Sequences used of a client, half of them scored, and of a client's own test
  rows all; 0: all."""
  split_unit: Literal['documents', 'sequences'] = setting(
    'documents', changes_results=False
  )
  """Halves of a held-out client, one of which is scored, are made of whole
  documents, or of 'sequences', blocks of the joined text. Images are split one
  by one."""
  batch_size: int = number(16, at_least=1)
  """Sequences per step of an evaluation or of a client's validation, >= 1;
  changes the speed, and the last bits of losses."""
  barrier_every_num_rounds: int = number(0, at_least=0, changes_results=False)
  """Measure the Client-Server Barrier every N rounds and after the last round.
  0 disables it. Each measurement takes about as long as one single-worker
  round: the clients train again in the driver process."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsConfig(Section, section='checkpoints'):
  """Checkpoints to save and to keep."""

  every_num_rounds: int = number(at_least=0, changes_results=False)
  """Round 0 and the last are always saved; 0: only those two."""
  keep_last: int = number(0, at_least=0, changes_results=False)
  """Latest checkpoints kept beside round 0's; 0: all."""
  keep_every_num_rounds: int = number(0, at_least=0, changes_results=False)
  """Checkpoints of multiples of this are kept beside those; 0: none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(Section, section='engine'):
  """Execution of the rounds."""

  kind: Literal['in_process', 'ray'] = setting(
    'in_process', changes_results=False
  )
  """'in_process', or 'ray': worker processes, on one machine or a cluster."""
  num_workers: int = number(1, at_least=1, changes_results=False)
  """Worker processes of kind 'ray', >= 1; changes the speed only."""
  threads_per_worker: int = number(1, at_least=1)
  """TensorFlow threads of a worker, >= 1; may change the last bits."""
  gpus_per_worker: float | None = number(
    None, at_least=0, changes_results=False
  )
  """GPUs that Ray reserves for a worker, such as 1 or 0.5; None: 1 where the
  cluster has one for every worker."""
  ray_address: str = setting('local', changes_results=False)
  """'local' starts Ray on this machine; 'auto' or HOST:PORT joins a cluster."""
  num_partial_sums: int = number(0, at_least=0)
  """Parts into which a cohort is divided and summed up, which fixes the last
  bits of the result; 0: 1 in process, at most 8 with workers."""
  quorum: float = number(0.5, at_least=0, below=1, changes_results=False)
  """A round fails unless more than this share of its cohort took part."""
  xla: bool = False
  """Compiles forward and backward pass with XLA, which takes unrolled layers;
  slower than without on a CPU."""


def resolved_partial_sums(
  wanted: int, kind: str, cohort_size: int | None
) -> int:
  """Returns the parts of a cohort by settings of `engine`.

  A cohort of unknown size, None, may still have fewer clients than parts.
  """
  wanted = wanted or (1 if kind == 'in_process' else _MAX_PARTIAL_SUMS)
  return min(wanted, cohort_size or wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
  """Everything that fixes a run's numbers; written into it as config.json.

  Raises:
    ConfigError: If settings of different sections do not go together.
  """

  algorithm: AlgorithmConfig
  """An instance of the method's own class, which `algorithm.name` chooses."""
  client_work: ClientWorkConfig
  local_privacy: LocalPrivacyConfig = LocalPrivacyConfig()
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
    # Each section is right by itself.
    if problems := problems_of(self):
      raise ConfigError(problems)

  @property
  def method(self) -> Method:
    """The declaration of the method, `algorithm.name`, or of its phase."""
    if self.phase is not None:
      return self.phase.method
    return registry.find(self.algorithm.name)

  @property
  def phase(self) -> Phase | None:
    """The phase that `in_round` chose; None: the whole run."""
    return getattr(self, '_phase', None)

  @property
  def phases(self) -> tuple[Phase, ...]:
    """Phases of the whole run; (): all its rounds are of one kind."""
    return registry.find(self.algorithm.name).phases(self)

  def in_round(self, round_num: int) -> 'TrainConfig':
    """Returns the config as it holds in a round, and of the state after it.

    All settings are the same; `method` is that of the phase. Round 0, before
    training, is of the first phase.
    """
    for phase in self.phases:
      if phase.last_round is None or round_num <= phase.last_round:
        found = copy.copy(self)
        # Not a field: it is no setting.
        object.__setattr__(found, '_phase', phase)
        return found
    return self

  def with_values(self, section: str, **values: Any) -> 'TrainConfig':
    """Returns the config with other values of settings in a section."""
    changed = dataclasses.replace(getattr(self, section), **values)
    return dataclasses.replace(self, **{section: changed})

  @property
  def kept_slots(self) -> tuple[Slot, ...]:
    """Tensors that each client keeps between rounds."""
    slots = self.method.slots(self)
    if self.client_work.keeps_optimizer_state:
      num_moments = self.client_work.step_cost().num_state_tensors
      slots += (Slot('optimizer', num_moments),)
    return slots

  @property
  def fine_tuning_rate(self) -> float:
    """Step size of fine-tuning where none is given."""
    features = self.method.features
    if features is not None and features.learning_rate is not None:
      return features.learning_rate(self)
    return self.client_work.learning_rate

  @property
  def num_partial_sums(self) -> int:
    """Into how many parts a cohort is divided; `engine.num_partial_sums`."""
    return resolved_partial_sums(
      self.engine.num_partial_sums, self.engine.kind, self.cohort_size
    )

  @property
  def cohort_size(self) -> int | None:
    """Clients per round, at most; None: as many as the corpus has."""
    return self.cohorts.cohort_size or self.partition.num_clients

  @property
  def marks_repeats(self) -> bool:
    """Whether rows are marked that came before in a round."""
    is_stream = self.client_work.num_local_steps is not None
    return is_stream and not self.local_privacy.draws_batches

  @property
  def drops_last_batch(self) -> bool:
    """Whether a client's last batch is dropped if it is smaller."""
    privacy = self.local_privacy
    if privacy.is_on and not privacy.draws_batches:
      return True
    return self.data.client_batches == 'full_only'

  @property
  def row_fractions(self) -> tuple[float, float]:
    """Shares of a participating client's rows for validation and for tests."""
    splits, personal = self.client_splits, self.method.personal(self)
    validation, test = splits.validation_fraction, splits.test_fraction
    if validation is None:
      validates = personal is not None and personal.validates
      validation = _PART_FRACTION if validates else 0.0
    if test is None:
      is_tested = personal is not None and not self.partition.has_twins
      test = _PART_FRACTION if is_tested else 0.0
    return validation, test

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
