"""Settings of a training run, with their units and bounds."""

import copy
import dataclasses
from typing import Literal

from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from models.transformer_config import PRESETS, TransformerConfig
from tff_fedfish.config.data_settings import (
  IMAGE_SIZES,
  ClientSplitsConfig,
  CohortsConfig,
  DataConfig,
  PartitionConfig,
)
from tff_fedfish.config.optimizer_settings import ClientWorkConfig, ServerConfig
from tff_fedfish.config.privacy_settings import (
  LocalPrivacyConfig,
  privacy_problems,
)
from tff_fedfish.config_fields import ConfigError, Section, number, seed
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method, Phase, Slot
from tff_fedfish.methods.settings import AlgorithmConfig

# Of a cohort that several workers share, where the config does not say.
_MAX_PARTIAL_SUMS = 8
# Of a client's rows, for validation and for tests, where the config says none.
_PART_FRACTION = 0.2
# Sequences of a client in a round, whose order lies in memory.
_MAX_STREAM = 10**8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Section, section='model'):
  """The model. Sizes left at None become the preset's."""

  preset: str
  """A name of `PRESETS` in models/transformer_config.py; 'custom': all four
  sizes are given here; for images 'emnist_cnn', 'resnet18', 'linear', 'lenet'
  or 'fed_net_cnn', which read nothing else of this section."""
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
        f'`config.model.{name}` must be left at {getattr(ModelConfig, name)} '
        f'with preset {self.preset!r}, found {value!r}'
        for name, value in self.changed().items()
        if name != 'preset'
      ]
    return [
      f'`config.model.preset` must be one of {", ".join(PRESETS)}, custom, '
      f'{", ".join(IMAGE_MODELS)}, found {self.preset!r}'
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
  dropout and distortions; with `fisher_estimator` 'true' the labels drawn."""
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
  max_non_finite_rounds: int = number(10, at_least=0)
  """Stop after so many rounds in a row in which no client with data returned a
  finite update, or whose mean update was not finite. 0: never stop. May change
  when a run is resumed."""
  start_from: str | None = None
  """Checkpoint of another run, or a run directory (its last checkpoint), whose
  weights a new run begins with; a head for another number of classes is drawn.
  None: all weights are drawn. Not read again when a run is resumed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Section, section='evaluation'):
  """Scores of models while a run trains, on a fixed sample of clients."""

  every_num_rounds: int = number(at_least=0)
  """Round 0 and the last are always scored; 0: only those two."""
  num_clients: int = number(at_least=0)
  """Held-out clients in the sample; with models of clients' own, the first
  participating clients, each scored on its own test rows. 0: no scores during
  training."""
  max_sequences_per_client: int = number(64, at_least=0)
  """Sequences used of a client, half of them scored, and of a client's own test
  rows all; 0: all."""
  split_unit: Literal['documents', 'sequences', None] = None
  """Halves of a held-out client, one of which is scored, are made of whole
  documents, or of 'sequences', blocks of the joined text. Images are split one
  by one. None: documents; a run that is resumed keeps its own."""
  batch_size: int = number(16, at_least=1)
  """Sequences per step of an evaluation or of a client's validation, >= 1;
  changes the speed, and the last bits of losses."""
  barrier_every_num_rounds: int = number(0, at_least=0)
  """Measure the Client-Server Barrier every N rounds and after the last round.
  0 disables it. Each measurement takes about as long as one single-worker
  round: the clients train again in the driver process."""
  diagnostics_every_num_rounds: int = number(0, at_least=0)
  """Compare the method's mean of the model deltas with the plain one every N
  rounds and after the last round: their cosine and the ratio of their norms. 0
  disables it. Takes as long as a barrier, without its scores."""

  @property
  def halves_unit(self) -> str:
    """'documents' or 'sequences'."""
    return self.split_unit or 'documents'


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsConfig(Section, section='checkpoints'):
  """Checkpoints to save and to keep."""

  every_num_rounds: int = number(at_least=0)
  """Round 0 and the last are always saved; 0: only those two."""
  keep_last: int = number(0, at_least=0)
  """Latest checkpoints kept beside round 0's; 0: all."""
  keep_every_num_rounds: int = number(0, at_least=0)
  """Checkpoints of multiples of this are kept beside those; 0: none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientStatesConfig(Section, section='client_states'):
  """Tensors that clients keep between rounds, on disk."""

  dtype: Literal['float32', 'bfloat16'] = 'float32'
  """Type of floats on disk; 'bfloat16' halves their size and rounds them."""
  max_bytes: int = number(64 * 2**30, at_least=1)
  """Size at which a run stops after saving a checkpoint; features have the same
  limit. Unit: bytes, >= 1. May change when a run is resumed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(Section, section='engine'):
  """Execution of the rounds."""

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
  client_states: ClientStatesConfig = ClientStatesConfig()
  engine: EngineConfig = EngineConfig()

  def __post_init__(self):
    # Each section is right by itself.
    if problems := [
      *_problems_of_method(self),
      *_problems_of_states(self),
      *_problems_of_clients(self),
      *_problems_of_rows(self),
      *_problems_of_steps(self),
      *privacy_problems(self),
      *_problems_of_model(self),
      *_problems_of_engine(self),
    ]:
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

  @property
  def kept_slots(self) -> tuple[Slot, ...]:
    """Tensors that each client keeps between rounds."""
    slots = self.method.slots(self)
    if self.client_work.keeps_optimizer_state:
      num_moments = self.client_work.step_cost().num_state_tensors
      slots += (Slot('optimizer', num_moments),)
    return slots

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


def _problems_of_method(config):
  expected, found = config.method.settings, type(config.algorithm)
  if found is not expected:
    return [
      f'`config.algorithm` must be a {expected.__name__} with algorithm.name '
      f'{config.algorithm.name!r}, found a {found.__name__}'
    ]
  # Methods may ask for the model's shape, which then there is none.
  if _problems_of_model(config):
    return []
  return config.method.problems(config)


def _problems_of_states(config):
  if config.kept_slots:
    return []
  return [
    f'`config.client_states.{name}` is read where clients keep tensors only, '
    f'found {value!r}; leave it out'
    for name, value in config.client_states.changed().items()
  ]


def _problems_of_clients(config):
  """Says where the clients cannot come from what is set."""
  name, scheme = config.data.corpus, config.partition.scheme
  held_out_fraction = config.client_splits.held_out_fraction
  corpus = IMAGE_CORPORA.get(name)
  clients = corpus.clients if corpus else 'own'
  merges_groups = config.partition.merges_groups
  problems = []
  if merges_groups and corpus:
    problems.append(
      "`config.partition.scheme` 'merge' requires a corpus of text, found "
      f'corpus {name!r}'
    )
  if merges_groups and config.data.sampling != 'blocks':
    problems.append(
      "`config.data.sampling` must be 'blocks' with `config.partition.scheme` "
      f"'merge', found {config.data.sampling!r}"
    )
  if clients == 'partition' and scheme is None:
    problems.append(
      f'`config.partition.scheme` is required with corpus {name!r}, which has '
      'no clients of its own'
    )
  if clients == 'own' and scheme is not None and not merges_groups:
    choices = 'left out' if corpus else "left out or 'merge'"
    problems.append(
      f'`config.partition.scheme` must be {choices} with corpus {name!r}, '
      f'which has clients of its own, found {scheme!r}'
    )
  if held_out_fraction is None and not (corpus and corpus.holds_out):
    problems.append(
      '`config.client_splits.held_out_fraction` must be a number with corpus '
      f'{name!r}, which holds nobody out itself, found None'
    )
  scores_held_out = config.method.personal(config) is None
  if (
    held_out_fraction == 0 and scores_held_out and config.evaluation.num_clients
  ):
    problems.append(
      '`config.evaluation.num_clients` must be 0 when '
      '`config.client_splits.held_out_fraction` is 0, found '
      f'{config.evaluation.num_clients}'
    )
  return problems


def _problems_of_rows(config):
  """Says where the rows of clients cannot be divided as is set."""
  validation, test = config.row_fractions
  personal, splits = config.method.personal(config), 'config.client_splits'
  problems = []
  if validation + test >= 1:
    problems.append(
      f'`{splits}.validation_fraction` and `{splits}.test_fraction` must be '
      f'below 1 together, found {validation} and {test}'
    )
  if validation + test > 0 and config.data.sampling != 'blocks':
    problems.append(
      "`config.data.sampling` must be 'blocks' where clients keep rows for "
      f'validation or tests, found {config.data.sampling!r}'
    )
  if test > 0 and config.partition.has_twins:
    problems.append(
      f'`{splits}.test_fraction` must be 0 with `config.partition.held_out` '
      f"'matching', whose clients are tested on, found {test}"
    )
  has_tests = test > 0 or config.partition.has_twins
  if personal is not None and not has_tests:
    problems.append(
      f'`{splits}.test_fraction` must be above 0 with algorithm.name '
      f'{config.algorithm.name!r}, found {test}'
    )
  if personal is not None and personal.validates and not validation:
    problems.append(
      f'`{splits}.validation_fraction` must be above 0 with algorithm.name '
      f'{config.algorithm.name!r}, found {validation}'
    )
  if config.client_splits.shuffles_targets and not has_tests:
    problems.append(
      f'`{splits}.shuffles_targets` must be false where clients have no test '
      f'rows, found true; set `--{splits}.test_fraction`'
    )
  return problems


def _problems_of_steps(config):
  work, batches = config.client_work, config.data.client_batches
  cap = work.max_sequences_per_client
  if work.num_local_steps is None:
    if batches == 'ragged' or (cap is None and batches == 'full_only'):
      return []
    if cap is not None and cap >= work.local_batch_size:
      return []
    return [
      '`config.client_work.max_sequences_per_client` must be at least '
      f'local_batch_size, {work.local_batch_size}, with '
      f'`config.data.client_batches` {batches!r}, found {cap}'
    ]
  problems = []
  if batches != 'ragged':
    problems.append(
      "`config.data.client_batches` must be 'ragged' with num_local_steps, "
      f'whose batches are full anyway, found {batches!r}'
    )
  if config.data.sampling != 'blocks':
    problems.append(
      "`config.data.sampling` must be 'blocks' with num_local_steps, which "
      f'goes through all blocks in passes, found {config.data.sampling!r}'
    )
  if work.max_rows > _MAX_STREAM:
    problems.append(
      '`config.client_work.num_local_steps` times local_batch_size must be at '
      f'most {_MAX_STREAM} sequences, found {work.num_local_steps} times '
      f'{work.local_batch_size}'
    )
  return problems + [
    f'`config.client_work.{name}` must be {wanted} with num_local_steps, which '
    f'says how many sequences a round takes, found {found}'
    for name, wanted in (
      ('num_local_epochs', 1),
      ('max_sequences_per_client', None),
    )
    if (found := getattr(work, name)) != wanted
  ]


def _problems_of_model(config):
  preset, holds_images = config.model.preset, config.data.holds_images
  if holds_images != (preset in IMAGE_MODELS):
    fitting = IMAGE_MODELS if holds_images else (*PRESETS, 'custom')
    return [
      f'`config.model.preset` must be one of {", ".join(fitting)} with corpus '
      f'{config.data.corpus!r}, found {preset!r}'
    ]
  if holds_images:
    if config.engine.xla:
      return [
        '`config.engine.xla` must be false with an image model, found true'
      ]
    return []
  try:
    shape = config.transformer_config()
  except ValueError as error:
    return [f'`config.model`: {str(error).rstrip(".")}']
  if config.engine.xla and not shape.unrolls_layers:
    return [
      '`config.engine.xla` must be false where the layers are looped over, '
      f'found true with {shape.num_layers} layers; set '
      '`--config.model.layer_loop=unrolled` to have it'
    ]
  return []


def _problems_of_engine(config):
  num_parts = config.num_partial_sums
  if config.engine.kind == 'ray' and config.engine.num_workers > num_parts:
    return [
      '`config.engine.num_workers` must be at most the number of parts into '
      f'which a cohort is divided, {num_parts}, found '
      f'{config.engine.num_workers}; raise `--config.engine.num_partial_sums` '
      'or `--config.cohorts.cohort_size`'
    ]
  return []
