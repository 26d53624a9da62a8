"""Parts of a method's declaration: what it sends, keeps, costs and measures."""

import typing
from collections.abc import Callable
from typing import Any, Literal

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig
  from tff_fedfish.methods.method import Method


class Traffic(typing.NamedTuple):
  """Models that a client sends and receives in a round.

  A model is as many float32 scalars as there are trainable weights. A few
  scalars more do not count.
  """

  uplink: float = 1
  """From the client to the server, which adds up as many models."""
  downlink: float = 1
  """From the server to the client."""


class ClientCost(typing.NamedTuple):
  """Memory and work of a client in a round, beside plain local training."""

  models_held: int = 0
  """Models beside its weights, their gradients, the optimizer's state and the
  kept tensors: in the pass after training if there is one, else in training."""
  passes_in_training: float = 0
  """Forward and backward passes in a local step beside that of the data loss,
  without logits. A forward pass is a third."""
  passes_after_training: float = 0
  """Forward and backward passes over the client's rows after training."""


class Column(typing.NamedTuple):
  """A column of metrics.csv that a method adds."""

  name: str
  """Such as `train/mu`."""
  path: tuple[str, ...]
  """Keys of the scalar in the metrics of the learning process, such as
  `('client_work', 'mu')`."""
  at_most: float | None = None
  """A larger value ends the run. None: no limit."""


class Phase(typing.NamedTuple):
  """Consecutive rounds of a run that have a learning process of their own."""

  name: str
  """Such as `bootstrap`."""
  first_round: int
  """Counted from 1."""
  last_round: int | None
  """Last round of the phase; None for the last phase. `first_round - 1` makes a
  phase without rounds: only its `begin_phase` runs."""
  method: 'Method'
  """Stands for the run's own in these rounds, settings and problems aside."""


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
  downloads_column: str | None = None
  """Column with the models that all clients of a round were sent, from which
  communication is counted. None: as `Method.traffic` says."""


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


class Features(typing.NamedTuple):
  """Features of their rows that clients compute once and then train on.

  Every client must take part in every round, or the run ends.
  """

  sizes: Callable[['TrainConfig'], FeatureSizes]
  """Sizes with a config."""
  use: Literal['unused', 'written', 'read'] = 'unused'
  """'written': the clients of a round compute their features and keep them.
  'read': they are fed with these instead of rows. 'unused': neither; some phase
  of the run has another value."""
  work: Callable[..., Callable[..., Any]] | None = None
  """(config, the config's model, the server's weights) -> a function. With
  'written' it makes of a batch its features, float32 [rows, num_features]. With
  'read' it makes of a client's features its basis, which it is fed with, too:
  `vectors` and `power_sums` of `FeatureClient`. None: clients have none."""
  shapes: Callable[['TrainConfig'], ServerShapes] | None = None
  """Weights of the model on features. None: those of the config's model."""
  learning_rate: Callable[['TrainConfig'], float] | None = None
  """Step size of fine-tuning that model. None: that of the clients."""
