"""The config of a training run: its sections, and what follows from them."""

import copy
import dataclasses
from typing import Any

from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish.config.data_settings import (
  ClientSplitsConfig,
  CohortsConfig,
  DataConfig,
  PartitionConfig,
)
from tff_fedfish.config.optimizer_settings import ClientWorkConfig, ServerConfig
from tff_fedfish.config.rules import problems_of
from tff_fedfish.config.run_settings import (
  AggregationConfig,
  CheckpointsConfig,
  EngineConfig,
  EvaluationConfig,
  LocalPrivacyConfig,
  ModelConfig,
  SeedsConfig,
  TrainingConfig,
)
from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.fields import ConfigError, Section, number
from tff_fedfish.methods.method import Method, kept_models
from tff_fedfish.methods.parts import Phase

_MAX_PARTIAL_SUMS = 8
# Default fraction of a client's rows for validation, and for tests.
_PART_FRACTION = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedConfig(Section, section='resolved'):
  """Facts that are read when a run starts; no settings."""

  image_height: int | None = number(None, at_least=16, below=129)
  """Height of the images. Unit: pixels."""
  image_width: int | None = number(None, at_least=16, below=129)
  """Width of the images. Unit: pixels."""
  image_channels: int | None = number(None, at_least=1, below=4)
  """1 (grey) or 3 (RGB)."""
  classes: str | None = None
  """Class directories, sorted by bytes, with slashes between: 'cat/dog'."""
  num_threads: int | None = number(None, at_least=1)
  """TensorFlow threads within an op; the last bits depend on them."""

  @property
  def class_names(self) -> tuple[bytes, ...]:
    """Names of the class directories, by label."""
    return tuple(map(text_to_client_id, self.classes.split('/')))

  @property
  def image_shape(self) -> tuple[int | None, ...]:
    """Height, width and channels."""
    return self.image_height, self.image_width, self.image_channels


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
  """Everything that fixes a run's numbers; written into it as config.json.

  Raises:
    ConfigError: If settings of different sections do not go together.
  """

  algorithm: Method
  """The method, of the class that `algorithm.name` chooses."""
  client_work: ClientWorkConfig
  local_privacy: LocalPrivacyConfig = LocalPrivacyConfig()
  server: ServerConfig
  aggregation: AggregationConfig = AggregationConfig()
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
  resolved: ResolvedConfig = ResolvedConfig()

  def __post_init__(self):
    # Each section is right by itself.
    if problems := problems_of(self):
      raise ConfigError(problems)

  @property
  def method(self) -> Method:
    """The method, or that of its phase."""
    return self.algorithm if self.phase is None else self.phase.method

  @property
  def phase(self) -> Phase | None:
    """The phase that `in_round` chose; None: the whole run."""
    return getattr(self, '_phase', None)

  @property
  def phases(self) -> tuple[Phase, ...]:
    """Phases of the whole run; (): all its rounds are of one kind."""
    return self.algorithm.phases(self)

  def in_round(self, round_num: int) -> 'TrainConfig':
    """Returns the config as it holds in a round, and of the state after it.

    All settings are the same; `method` is that of the phase. Round 0, before
    training, is of the first phase.
    """
    for phase in self.phases:
      if phase.last_round is None or round_num <= phase.last_round:
        config = copy.copy(self)
        object.__setattr__(config, '_phase', phase)
        return config
    return self

  def with_values(self, section: str, **values: Any) -> 'TrainConfig':
    """Returns the config with other values of settings in a section."""
    changed = dataclasses.replace(getattr(self, section), **values)
    return dataclasses.replace(self, **{section: changed})

  @property
  def kept_models(self) -> dict[str, float]:
    """Sizes of what each client keeps between rounds, in models, by slot."""
    sizes = kept_models(self)
    if self.client_work.keeps_optimizer_state:
      sizes['optimizer'] = self.client_work.step_cost().num_state_tensors
    return sizes

  @property
  def fine_tuning_rate(self) -> float:
    """Step size of fine-tuning where none is given."""
    features = self.method.features
    if features is not None and features.learning_rate is not None:
      return features.learning_rate(self)
    return self.client_work.learning_rate

  @property
  def num_partial_sums(self) -> int:
    """Parts into which a cohort is divided; `engine.num_partial_sums`.

    A cohort of unknown size may still have fewer clients than parts.
    """
    default = 1 if self.engine.kind == 'in_process' else _MAX_PARTIAL_SUMS
    wanted = self.engine.num_partial_sums or default
    return min(wanted, self.cohort_size or wanted)

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
      num_classes=corpus.num_classes or len(self.resolved.class_names),
      image_shape=corpus.image_shape or self.resolved.image_shape,
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
