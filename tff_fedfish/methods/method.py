"""The declaration of a federated method: `Method` and its parts."""

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, Literal

from tff_fedfish.errors import UserError
from tff_fedfish.methods.settings import (
  AlgorithmConfig,
  own_settings,
  require_settings,
)
from tff_fedfish.rounds.privacy import LocalPrivacy

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig
  from tff_fedfish.methods.one_shot.uploads import UploadKind


class Traffic(typing.NamedTuple):
  """Models that one client sends and receives in a round."""

  uplink: float = 1
  """From the client to the server."""
  downlink: float = 1
  """From the server to the client."""


class Slot(typing.NamedTuple):
  """Tensors that every client keeps between rounds."""

  name: str
  """Such as `control_variate`."""
  num_models: float
  """Their size, in models."""


class Phase(typing.NamedTuple):
  """Consecutive rounds of a run that have a learning process of their own."""

  name: str
  """Such as `bootstrap`."""
  first_round: int
  """Counted from 1."""
  last_round: int | None
  """One below `first_round`: there is none, and the phase draws only what the
  next one begins with. None, in the last phase only: the run's last."""
  method: 'Method'
  """Stands for the run's own in these rounds, settings and problems aside."""
  begin: str | None = None
  """'module:function', imported late: (config, process of the phase, state of
  the process before it after its last round) -> first state. A function of
  these. None in the first phase."""


class ServerShapes(typing.NamedTuple):
  """Name -> shape of weights, in the order of a model."""

  trainable: dict[str, tuple[int, ...]]
  non_trainable: dict[str, tuple[int, ...]]
  """Weights held fixed."""


class FeatureSizes(typing.NamedTuple):
  """Sizes of what clients compute of their rows once, and keep."""

  num_features: int
  """Features of a row, float16."""
  max_gram_rows: int
  """Rows of a client up to which it keeps the eigenbasis of its Gram matrix; 0:
  none does."""


class Downloads(typing.NamedTuple):
  """Models of other clients that a client is sent in a round.

  They were uploaded in the round before, and are chosen by the client's slot
  `affinity`, see `fed_fomo.choose_downloads`.
  """

  num_models: int
  """Models, at most."""
  epsilon: float
  """Probability of a random choice in round 1."""
  epsilon_decay: float
  """Decrease of that probability per round."""


class PersonalModels(typing.NamedTuple):
  """Models of clients' own, kept in the slot `model`."""

  validates: bool = False
  """Whether clients need validation rows."""
  downloads: Downloads | None = None
  """None: clients are sent no models of others."""


class Column(typing.NamedTuple):
  """A column of metrics.csv that a method adds."""

  name: str
  """Such as `train/mu`."""
  path: tuple[str, ...]
  """Keys of the scalar in the metrics of the learning process, such as
  `('client_work', 'mu')`."""
  at_most: float | None = None
  """A larger value ends the run. None: none does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientCost:
  """Extra work and memory of a client, compared with training only.

  `fedfish plan` and the memory limit of sweeps are computed from it. A model
  is as many float32 scalars as the trainable weights have. The weights of the
  client and of the server and the state of the client optimizer are counted
  apart from it.
  """

  models_summed: int = 1
  """Models over which the server forms sums."""
  models_in_training: int = 0
  """Models that a client holds in its local steps, but for those that it keeps
  between rounds."""
  extra_forwards: int = 0
  """Forward passes in a local step besides the data loss's, without logits."""
  extra_backwards: int = 0
  """How many of them are differentiated."""
  pass_after_training: Literal['none', 'batches', 'rows'] = 'none'
  """Gradients computed after local training and squared: none, one per batch,
  or one per row."""
  models_after_training: int = 0
  """Models that a client holds after local training, during that pass if there
  is one."""
  squares_last_epoch: bool = False
  """Whether the gradients of the last local epoch are squared and added."""
  flops_per_weight: int = 2
  """Operations per weight on a finished model delta, sums included."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """A federated method: names, settings, implementation, cost."""

  name: str
  """Value of `algorithm.name`; the name of its module."""
  title: str
  """The method's name in print, such as 'FedProx'."""
  summary: str
  """One line."""
  source: str
  """Citation."""
  settings: type[AlgorithmConfig]
  """Frozen subclass of `AlgorithmConfig` with the settings that the method
  reads."""
  builder: str
  """'module:function', imported late. The function takes the model and the
  keywords `client_optimizer`, `server_optimizer`, `num_local_epochs`,
  `client_weighting`, those of `arguments`, and of `max_delta_norm`,
  `num_local_steps`, `micro_batch_size`, `keeps_optimizer_state` and
  `local_privacy` those that are set: with the last one nothing that clients
  send may depend on data but by `private_gradients`. It returns a
  `tff.learning.templates.LearningProcess`."""
  arguments: Callable[['TrainConfig'], dict[str, Any]] = own_settings
  """Keywords of the builder beyond those: by default every setting that
  `AlgorithmConfig` does not have."""
  traffic: Callable[['TrainConfig'], Traffic] = lambda config: Traffic()
  """Models that a client sends and receives in a round. To describe the method
  it is given a config with `algorithm` only, at its defaults."""
  cost: Callable[['TrainConfig'], ClientCost] = lambda config: ClientCost()
  """Extra work and memory of a client."""
  slots: Callable[['TrainConfig'], tuple[Slot, ...]] = lambda config: ()
  """Tensors that a client keeps between rounds. Its builder gives `compose`
  slots of the same names."""
  phases: Callable[['TrainConfig'], tuple[Phase, ...]] = lambda config: ()
  """Phases of a run, in their order, which follow each other; (): all rounds
  are of one kind. The other fields then say of the phases together what a table
  can show: columns and slots are those of any phase. Only the last phase may
  keep slots."""
  model: str | None = None
  """'module:function', imported late; None: the model is that of the config.
  The function takes the config and the model of the config, and returns the one
  that the server holds and that is scored."""
  learning_rate: Callable[['TrainConfig'], float] = lambda config: (
    config.client_work.learning_rate
  )
  """Step size of fine-tuning where none is given."""
  weight_shapes: Callable[['TrainConfig'], ServerShapes] | None = None
  """Name -> shape of the server's trainable weights, and of those held fixed,
  in the order of that model. None: those of the config's model."""
  features: Literal['unused', 'written', 'read'] = 'unused'
  """Whether the clients of a round compute features of their rows and keep them
  ('written'), or are fed with those that they kept ('read') instead of rows;
  'unused': neither."""
  feature_work: str | None = None
  """'module:function', imported late, called with the config, the config's
  model and the server's weights. With 'written' it returns a function from a
  batch to its features, float32 [rows, num_features]. With 'read' it returns a
  function from a client's features to its basis, which it is fed with, too:
  `vectors` and `power_sums` of `FeatureClient`. None: clients have none."""
  feature_sizes: Callable[['TrainConfig'], FeatureSizes | None] = (
    lambda config: None
  )
  """Features of a row, and rows up to which a client keeps the eigenbasis of
  its Gram matrix, too. None: it keeps neither."""
  takes_num_clients: bool = False
  """Whether the builder takes `num_clients`, the number of clients that may
  take part, where that is known."""
  requires_all_clients: Callable[['TrainConfig'], bool] = lambda config: False
  """Whether a round in which a client fails, or is not finite, must end the
  run."""
  columns: Callable[['TrainConfig'], tuple[Column, ...]] = lambda config: ()
  """Columns that it adds to metrics.csv."""
  downloads_column: str | None = None
  """Column with the models that all clients of a round were sent, from which
  communication is counted. None: as `traffic` says."""
  personal: Callable[['TrainConfig'], PersonalModels | None] = lambda config: (
    None
  )
  """Models of clients' own, which are evaluated in place of the server's. Its
  process has `personal_models`. None: there are none."""
  upload: Callable[['TrainConfig'], 'UploadKind | None'] = lambda config: None
  """Kind of what a client uploads, of a one-shot method."""
  solver: str | None = None
  """'module:function', imported late, a `one_shot.uploads.Solve`: the weights
  after a round from the clients' uploads. None: the server steps on the
  pseudo-gradient."""
  solve_models: Callable[['TrainConfig', int], float] = lambda config, n: 0.0
  """Models that the solver holds, given a number of clients."""
  client_mass: str | None = None
  """'module:function', imported late; None: the client weight in every
  coordinate. The function takes the config and returns a function (update,
  client weight, aggregator state) -> one float32 tensor per trainable tensor:
  the mass by which the server weighs the client's delta. `evaluate --barrier`
  computes effective clients from it."""
  plain_mean_fraction: Callable[['TrainConfig'], float] = lambda config: 0.0
  """Part s of the plain mean in the method's mean: s sum(w delta) / sum(w) + (1
  - s) sum(m delta) / sum(m), m being that mass."""
  problems: Callable[['TrainConfig'], list[str]] = lambda config: []
  """Clauses on settings of different sections that do not go together."""
  sends: str = 'weighted model deltas'
  """Values that the server sums, for the model card."""
  privacy: Callable[['TrainConfig'], str | None] = lambda config: None
  """Sentence of the model card on clipping and noise, for a method that clips
  or adds noise itself. None: the card says whether `max_delta_norm` clipped the
  model deltas, and that no noise was added."""
  example: str = 'demo'
  """Name of a shipped config that it can train."""
  hue: str | None = None
  """Colour in plots, '#RRGGBB'; None: the next free one."""
  hatch: str | None = None
  """Hatch of bars, as in Matplotlib; None: the next free one."""

  def __post_init__(self):
    if not self.name.isidentifier():
      raise ValueError(
        f"`name` must be a Python name, such as 'fed_prox', found {self.name!r}"
      )
    if self.hue and not re.fullmatch('#[0-9A-F]{6}', self.hue):
      raise ValueError(
        f"`hue` must be None or '#RRGGBB' in upper case, found {self.hue!r}"
      )
    for path in (self.builder, self.client_mass, self.solver, self.model):
      if path is not None and not all(path.partition(':')):
        raise ValueError(
          '`builder`, `client_mass`, `solver` and `model` must be '
          f"'module:function', found {path!r}"
        )
    require_settings(self.settings)

  def require_builder(self, config: 'TrainConfig') -> None:
    """Raises UserError unless the builder exists and takes its keywords.

    Imports the builder's module.
    """
    given = dict.fromkeys(_SHARED_KEYWORDS) | self.keywords(config)
    if self.takes_num_clients:
      given['num_clients'] = None
    try:
      inspect.signature(load(self.builder)).bind(None, **given)
    except TypeError as error:
      raise UserError(
        f'The builder {self.builder!r} of {config.algorithm.name!r} must take '
        f'a model and the keywords {", ".join(given)}, found: {error}. Add it '
        'to the builder, or leave out the setting.'
      ) from error

  def build(
    self,
    config: 'TrainConfig',
    model: Any,
    *,
    num_clients: int | None = None,
    **shared: Any,
  ) -> Any:
    """Returns the learning process.

    Args:
      config: The run's config; `algorithm` is an instance of `settings`.
      model: The model.
      num_clients: Clients that may take part. None: not known.
      **shared: `client_optimizer`, `server_optimizer`, `num_local_epochs` and
        `client_weighting`, for TFF.
    """
    keywords = shared | self.keywords(config)
    if self.takes_num_clients:
      keywords['num_clients'] = num_clients
    return load(self.builder)(model, **keywords)

  def keywords(self, config: 'TrainConfig') -> dict[str, Any]:
    """Returns the keywords of the builder that not every run has."""
    # A builder needs to know only those that are set.
    work = {n: getattr(config.client_work, n) for n in _OPTIONAL_KEYWORDS}
    is_default = (None, False)
    set_ones = {n: v for n, v in work.items() if v not in is_default}
    privacy = config.local_privacy
    if privacy.is_on:
      set_ones['local_privacy'] = LocalPrivacy(
        clip_norm=privacy.clip_norm,
        noise_multiplier=privacy.noise_multiplier,
        batch_size=config.client_work.local_batch_size,
        draws_batches=privacy.draws_batches,
      )
    return set_ones | self.arguments(config)


_SHARED_KEYWORDS = (
  'client_optimizer',
  'server_optimizer',
  'num_local_epochs',
  'client_weighting',
)
_OPTIONAL_KEYWORDS = (
  'max_delta_norm',
  'num_local_steps',
  'micro_batch_size',
  'keeps_optimizer_state',
)


def load(path: str) -> Any:
  """Imports the object that 'module:name' names.

  Raises:
    UserError: If there is none.
  """
  module, _, name = path.partition(':')
  try:
    return getattr(importlib.import_module(module), name)
  except (ImportError, AttributeError) as error:
    raise UserError(
      f'{path!r} must name a function of an importable module, found '
      f'{type(error).__name__}: {error}. Correct the METHOD that names it.'
    ) from error
