"""The declaration of a federated method.

Declarations import no TensorFlow: `fedfish methods`, `fedfish plan` and errors
of configs answer at once.
"""

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.methods.parts import (
  ClientCost,
  Column,
  Features,
  PersonalModels,
  Phase,
  Slot,
  Solver,
  Traffic,
)
from tff_fedfish.methods.settings import (
  AlgorithmConfig,
  own_settings,
  require_settings,
)
from tff_fedfish.rounds.privacy import LocalPrivacy

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig


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
  """'module:function', imported late. The function takes the model, the
  keywords `arguments`, and those of `rounds.compose.compose` that every method
  has: `client_optimizer`, `server_optimizer`, `num_local_epochs`,
  `client_weighting`, and of `max_delta_norm`, `num_local_steps`,
  `micro_batch_size`, `keeps_optimizer_state`, `local_privacy` and `delta_bits`
  those that are set. If it has a parameter `num_clients`, it is given how many
  clients may take part, or None. It returns a
  `tff.learning.templates.LearningProcess`."""
  arguments: Callable[['TrainConfig'], dict[str, Any]] = own_settings
  """Keywords of the builder: by default every setting that `AlgorithmConfig`
  does not have."""
  traffic: Callable[['TrainConfig'], Traffic] = lambda config: Traffic()
  """Models that a client sends and receives in a round. To describe the method
  it is given a config with `algorithm` and `model_shape` only."""
  bytes_beside_delta: Callable[['TrainConfig'], int] | None = None
  """Bytes that a client sends in a round beside one delta of
  `Trained.model_delta` with `aggregation.bits` below 32. None: clients send
  something else, and such bits are refused."""
  cost: Callable[['TrainConfig'], ClientCost] = lambda config: ClientCost()
  """Memory and work of a client."""
  slots: Callable[['TrainConfig'], tuple[Slot, ...]] = lambda config: ()
  """Tensors that a client keeps between rounds. Its builder gives `compose`
  slots of the same names. `fedfish methods` shows those that follow from
  `algorithm` and `model_shape` only."""
  columns: Callable[['TrainConfig'], tuple[Column, ...]] = lambda config: ()
  """Columns that it adds to metrics.csv."""
  phases: Callable[['TrainConfig'], tuple[Phase, ...]] = lambda config: ()
  """Phases of a run, in their order; (): all rounds are of one kind. With
  phases, `columns` and `slots` list those of all phases. Only the last phase
  may keep slots."""
  personal: Callable[['TrainConfig'], PersonalModels | None] = lambda config: (
    None
  )
  """Models of clients' own, which are evaluated in place of the server's. Its
  process has `personal_models`. None: there are none."""
  solver: Solver | None = None
  """None: the server steps on the pseudo-gradient."""
  features: Features | None = None
  """None: clients train on rows."""
  model: str | None = None
  """'module:function', imported late: (config, model of the config) -> the
  model that the server holds and that is scored. None: that of the config."""
  mass: str | None = None
  """'module:function', imported late. The function takes the config and returns
  (mass, s): the server's mean of the deltas is s sum(w delta) / sum(w) + (1 -
  s) sum(m delta) / sum(m), and `mass` is a function (update, client weight,
  aggregator state) -> m, one float32 tensor per trainable tensor. `evaluate
  --barrier` computes effective clients from it. `update` is what `make_update`
  returned; a factor that all clients share does not matter. None: m = w."""
  problems: Callable[['TrainConfig'], list[str]] = lambda config: []
  """Clauses on settings of different sections that do not go together."""
  example: str = 'demo'
  """Name of a shipped config that it can train."""
  takes_server_step: bool = True
  """Whether the server's optimizer takes a step. If not, no setting of `server`
  is read."""
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

  def upload(self, config: 'TrainConfig') -> Any:
    """Returns the `UploadKind` of a client; None without a solver."""
    return self.solver and self.solver.upload(config)

  @property
  def takes_num_clients(self) -> bool:
    """Whether the builder has `num_clients`; imports the builder's module."""
    return 'num_clients' in inspect.signature(load(self.builder)).parameters

  def keywords(self, config: 'TrainConfig') -> dict[str, Any]:
    """Returns the keywords of the builder that not every run has."""
    # A builder needs to know only those that are set.
    work = {n: getattr(config.client_work, n) for n in _OPTIONAL_KEYWORDS}
    set_ones = {n: v for n, v in work.items() if v not in (None, False)}
    privacy = config.local_privacy
    if privacy.is_on:
      set_ones['local_privacy'] = LocalPrivacy(
        clip_norm=privacy.clip_norm,
        noise_multiplier=privacy.noise_multiplier,
        batch_size=config.client_work.local_batch_size,
        draws_batches=privacy.draws_batches,
      )
    if config.aggregation.is_quantized:
      set_ones['delta_bits'] = config.aggregation.bits
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
