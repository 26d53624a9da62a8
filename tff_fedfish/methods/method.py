"""A federated method: a frozen dataclass whose fields are its settings.

The section `algorithm` of a config is an instance. A method overrides what
differs from FedAvg. Declaring one imports no TensorFlow (`tff_fedfish.late`):
`fedfish methods`, `fedfish plan` and errors of configs answer at once.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tff_fedfish.fields import Section, docs_of
from tff_fedfish.late import module, tff
from tff_fedfish.methods.parts import (
  ClientCost,
  Column,
  Features,
  PersonalModels,
  Phase,
  Traffic,
)
from tff_fedfish.rounds.client import Counts, KeptSlot, MethodState

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

_compose = module('tff_fedfish.rounds.compose')
_PACKAGE = 'tff_fedfish.methods.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Section, section='algorithm'):
  """A method: FedAvg where nothing is overridden.

  A subclass is a frozen dataclass. Its docstring is the method's summary, its
  fields are its settings, each with a default and a docstring. `config` is
  always the run's, `config.algorithm` the method itself.
  """

  name: str
  """Name of the method (`fedfish methods` lists them), or the importable module
  of a method of your own, such as `my_package.my_method`."""
  client_weighting: Literal['num_examples', 'uniform'] = 'num_examples'
  """Client weight: the client's sequences in the round, or 1."""

  # Class attributes, which are no settings.
  title: ClassVar[str]
  """The method's name in print, such as 'FedProx'."""
  source: ClassVar[str]
  """Citation."""
  example: ClassVar[str] = 'demo'
  """Name of a shipped config that it can train."""
  hue: ClassVar[str | None] = None
  """Colour in plots, '#RRGGBB'; None: the next free one."""
  hatch: ClassVar[str | None] = None
  """Hatch of bars, as in Matplotlib; None: the next free one."""
  takes_server_step: ClassVar[bool] = True
  """Whether the server's optimizer takes a step. If not, no setting of `server`
  is read."""
  takes_steps: ClassVar[bool] = True
  """Whether clients take local steps. If not, gradients are computed at the
  server's weights, for the observer only."""
  client_inputs: ClassVar[tuple[str, ...]] = ()
  """Names of further client inputs, see `rounds.kept.client_data_type`."""
  reads_num_clients: ClassVar[bool] = False
  """Whether `state` or `kept` reads `num_clients`, how many clients may take
  part; else they are given None."""
  weighs_coordinates: ClassVar[bool] = False
  """Whether the server's mean has other weights than w: clients send a weight
  for each coordinate. A property where it depends on the settings."""
  features: ClassVar[Features | None] = None
  """None: clients train on rows."""
  held_model = None
  """(self, config, model of the config) -> the model that the server holds and
  that is scored. None: that of the config."""
  begin_phase = None
  """(self, config, process of the phase, state after the last round of the
  process before it) -> first state, a function of these. None in the first
  phase."""
  solve = None
  """(self, uploads, start, context) -> `one_shot.uploads.SolveResult`: the
  weights after a round; only of an `one_shot.OneShot`. None: the server steps
  on the pseudo-gradient."""
  quantized_extra_bytes = None
  """(self, config) -> bytes that a client sends in a round beside a quantized
  delta. None: it sends no delta, or one that must not be quantized, and
  `aggregation.bits` below 32 are refused."""

  # Hooks of a client's round; None: there is none. See `rounds.compose`.
  begin = None
  """(self, start) -> `Start` with `start_model` set."""
  correct_gradient = None
  """(self, start, gradients, weights) -> gradients."""
  extra_loss = None
  """(self, start, weights, batch, output) -> scalar beside the data loss."""
  observer = None
  """(self, start) -> hook on the gradients of the last local epoch."""
  local_work = None
  """(self, start, dataset) -> `LocalResult`, in place of local training."""

  def __init_subclass__(cls, **options: Any):
    super().__init_subclass__(**options)
    # The name of a built-in method is that of its module.
    name = cls.__module__
    if name.startswith(_PACKAGE):
      name = name.rpartition('.')[-1]
    cls.__annotations__ = {'name': str, **inspect.get_annotations(cls)}
    cls.name = name

  def make_update(self, client: Any) -> tuple[Any, Counts]:
    """Returns what a client that has trained sends, and counts."""
    return client.model_delta()

  def aggregation(self) -> Any:
    """Returns a factory of the server's mean. None: FedAvg's."""
    return None

  def state(self, num_clients: int | None) -> MethodState | None:
    """Returns the method's state on the server. None: it has none."""
    return None

  def kept(self, num_clients: int | None) -> Mapping[str, KeptSlot]:
    """Returns what a client keeps between rounds, or returns, by name."""
    return {}

  def build(
    self, model: Any, *, num_clients: int | None = None, **training: Any
  ) -> Any:
    """Builds the learning process.

    Args:
      model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
      num_clients: Clients that may take part. None: not known.
      **training: Optimizers, numbers of steps and further keywords of
        `rounds.compose.compose`.

    Returns:
      The learning process; metrics `client_work`, `aggregator`, `finalizer`.
    """
    weighting = tff.learning.ClientWeighting[self.client_weighting.upper()]
    return _compose.compose(
      model,
      make_update=self.make_update,
      aggregation_factory=self.aggregation(),
      begin=self.begin,
      client_inputs=self.client_inputs,
      observer=self.observer,
      correct_gradient=self.correct_gradient,
      extra_loss=self.extra_loss,
      takes_steps=self.takes_steps,
      local_work=self.local_work,
      method_state=self.state(num_clients),
      kept_slots=self.kept(num_clients),
      **{'client_weighting': weighting} | training,
    )

  # Read without TensorFlow. `config` is the run's; to describe the method it
  # has `algorithm` and `model_shape()` only.

  def traffic(self, config: 'TrainConfig') -> Traffic:
    """Returns the models that a client sends and receives in a round."""
    return Traffic()

  def cost(self, config: 'TrainConfig') -> ClientCost:
    """Returns memory and work of a client beside plain local training."""
    return ClientCost()

  def columns(self, config: 'TrainConfig') -> tuple[Column, ...]:
    """Returns the columns that it adds to metrics.csv."""
    return ()

  def problems(self, config: 'TrainConfig') -> list[str]:
    """Returns clauses on settings of the config that do not go together."""
    return []

  def phases(self, config: 'TrainConfig') -> tuple[Phase, ...]:
    """Returns the phases of a run; (): all rounds are of one kind.

    With phases, `columns` and `kept` list those of all phases. Only the last
    phase may keep tensors.
    """
    return ()

  def personal(self, config: 'TrainConfig') -> PersonalModels | None:
    """Returns how clients' own models are evaluated in place of the server's.

    None: clients have no models of their own.
    """
    return None

  def upload(self, config: 'TrainConfig') -> Any:
    """Returns the `UploadKind` of a client; None unless the server solves."""
    return None


def kept_models(config: 'TrainConfig') -> dict[str, float]:
  """Returns the sizes of what a client keeps between rounds, in models."""
  sizes = {
    name: slot.num_models
    for name, slot in config.method.kept(None).items()
    if slot.initial is not None
  }
  return {n: s(config) if callable(s) else s for n, s in sizes.items()}


def own_fields(method: type[Method]) -> list[dataclasses.Field]:
  """Returns the settings of a method that not every method has."""
  shared = {field.name for field in dataclasses.fields(Method)}
  return [f for f in dataclasses.fields(method) if f.name not in shared]


def require_method(method: type[Method]) -> None:
  """Raises ValueError unless a class declares a method as configs need it."""
  if '__dataclass_fields__' not in vars(method):
    raise ValueError(
      f'the class {method.__name__} must have the decorator '
      '@dataclasses.dataclass(frozen=True, kw_only=True)'
    )
  for name in ('title', 'source'):
    if not getattr(method, name, None):
      raise ValueError(f'the class {method.__name__} must have a {name}')
  # The decorator makes one of the signature where there is none.
  if method.__doc__.startswith(f'{method.__name__}('):
    raise ValueError(f'the class {method.__name__} must have a docstring')
  parameters = inspect.signature(method.build).parameters.values()
  if inspect.Parameter.VAR_KEYWORD not in {p.kind for p in parameters}:
    raise ValueError('`build` must take **training and pass it on')
  hooks = [name for name in vars(Method) if not name.startswith('_')]
  own = [n for n, v in vars(method).items() if callable(v) and n not in hooks]
  for name in own:
    if near := difflib.get_close_matches(name, hooks, n=1, cutoff=0.85):
      raise ValueError(f'{name!r} is no hook; did you mean {near[0]!r}?')
  if method.hue and not re.fullmatch('#[0-9A-F]{6}', method.hue):
    raise ValueError(
      f"`hue` must be None or '#RRGGBB' in upper case, found {method.hue!r}"
    )
  docs = docs_of(method)
  for field in own_fields(method):
    kind_of(field)
    if hasattr(Method, field.name) or field.name in Method.__annotations__:
      raise ValueError(
        f'the setting {field.name!r} must have another name: Method has one '
        'of this name'
      )
    if field.default is dataclasses.MISSING:
      raise ValueError(f'the setting {field.name!r} must have a default')
    if field.name not in docs:
      raise ValueError(f'the setting {field.name!r} must have a docstring')


def kind_of(field: dataclasses.Field) -> str:
  """Returns the kind of a setting: 'bool', 'int', 'float', 'str', 'choice'.

  Raises:
    ValueError: If it is annotated otherwise.
  """
  annotation = field.type
  if isinstance(annotation, types.UnionType):
    inner, *others = typing.get_args(annotation)
    annotation = inner if others == [types.NoneType] else None
  if annotation in (bool, int, float, str):
    return annotation.__name__
  if typing.get_origin(annotation) is Literal and all(
    isinstance(choice, str) for choice in typing.get_args(annotation)
  ):
    return 'choice'
  raise ValueError(
    f'the setting {field.name!r} must be annotated as bool, int, float, str, '
    f'one of these | None, or a Literal of strings, found {field.type!r}'
  )
