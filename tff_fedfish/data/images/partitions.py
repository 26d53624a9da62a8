"""Partitions by name, for corpora of images without clients of their own."""

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from tff_fedfish.data.images import (
  class_partitions,
  dirichlet_partitions,
  pachinko,
)
from tff_fedfish.errors import UserError

_ALWAYS = ('scheme', 'num_clients', 'seed')


class _Scheme(NamedTuple):
  function: Callable[..., list[np.ndarray]]
  needs: tuple[str, ...] = ()
  """Parameters that must be given."""
  takes: tuple[str, ...] = ()
  """Parameters with a default."""


_SCHEMES: Mapping[str, _Scheme] = types.MappingProxyType(
  {
    'pachinko': _Scheme(
      pachinko.pachinko,
      takes=('examples_per_client', 'root_alpha', 'leaf_alpha'),
    ),
    'per_class_over_clients': _Scheme(
      dirichlet_partitions.per_class_over_clients,
      needs=('alpha',),
      takes=('min_examples',),
    ),
    'per_client_over_classes_normalised': _Scheme(
      dirichlet_partitions.per_client_over_classes_normalised, needs=('alpha',)
    ),
    'per_client_sampling': _Scheme(
      dirichlet_partitions.per_client_sampling, needs=('alpha',)
    ),
    'fixed_classes': _Scheme(
      class_partitions.fixed_classes, needs=('classes_per_client',)
    ),
    'pathological_shards': _Scheme(
      class_partitions.pathological_shards, needs=('shards_per_client',)
    ),
    'latent_distributions': _Scheme(class_partitions.latent_distributions),
  }
)

SCHEMES = tuple(_SCHEMES)
"""Names of the schemes: functions of the modules imported above."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
  """How examples are divided among clients; values only, as in a config."""

  scheme: str
  """One of `SCHEMES`; its function says what the parameters mean."""
  num_clients: int
  """Clients to make, >= 1; some may get no example."""
  seed: int
  """The `partition_seed`."""
  alpha: float | None = None
  """Concentration of the three Dirichlet schemes, which read it differently."""
  min_examples: int | None = None
  """Images of the smallest client (per_class_over_clients)."""
  classes_per_client: int | None = None
  """Classes of each client (fixed_classes)."""
  shards_per_client: int | None = None
  """Shards of each client (pathological_shards)."""
  examples_per_client: int | None = None
  """Images of each client (pachinko, as the next two)."""
  root_alpha: float | None = None
  """Concentration of a coarse class."""
  leaf_alpha: float | None = None
  """Concentration of a fine class."""

  def __post_init__(self):
    if self.scheme not in _SCHEMES:
      raise UserError(
        f'`partition.scheme` must be one of {", ".join(SCHEMES)} with images '
        f"or 'merge' with text, found {self.scheme!r}. Change it."
      )
    scheme = _SCHEMES[self.scheme]
    given = self._parameters()
    problems = [
      f'`partition.{name}` is required by the scheme {self.scheme!r}, but it '
      'is not given'
      for name in scheme.needs
      if name not in given
    ]
    problems += [
      f'`partition.{name}` is not read by the scheme {self.scheme!r}, but it '
      f'is {value!r}: leave it out'
      for name, value in given.items()
      if name not in scheme.needs + scheme.takes
    ]
    if problems:
      raise UserError('; '.join(problems) + '.')

  def split(
    self,
    labels: np.ndarray,
    *,
    num_classes: int,
    coarse_labels: np.ndarray | None = None,
  ) -> list[np.ndarray]:
    """Divides examples among the clients.

    Args:
      labels: Int [n], from 0 to num_classes - 1.
      num_classes: Classes that there are.
      coarse_labels: Int [n]; pachinko needs them, others do not look.

    Returns:
      The rows of each client, int64, ascending: `num_clients` arrays, none of
      which share a row.

    Raises:
      ValueError: If a count is no int or too small.
      UserError: If a parameter is out of range, or pachinko has no coarse
        labels.
    """
    function = _SCHEMES[self.scheme].function
    parameters = dict(
      num_clients=self.num_clients, seed=self.seed, **self._parameters()
    )
    if self.scheme == 'pachinko':
      if coarse_labels is None:
        raise UserError(
          "`partition.scheme` 'pachinko' requires coarse classes, which this "
          'corpus has not. Take cifar100, or another scheme.'
        )
      return function(labels, coarse_labels, **parameters)
    if self.scheme == 'latent_distributions':
      return function(labels, **parameters)
    return function(labels, num_classes=num_classes, **parameters)

  def parameters(self) -> dict[str, int | float]:
    """Returns all that the scheme reads, given or by default, but the seed."""
    scheme = _SCHEMES[self.scheme]
    defaults = inspect.signature(scheme.function).parameters
    return {
      'num_clients': self.num_clients,
      **{name: defaults[name].default for name in scheme.takes},
      **self._parameters(),
    }

  def _parameters(self) -> dict[str, int | float]:
    """Returns what was given of the parameters that not all schemes have."""
    return {
      field.name: value
      for field in dataclasses.fields(self)
      if field.name not in _ALWAYS
      and (value := getattr(self, field.name)) is not None
    }
