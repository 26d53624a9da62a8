"""Partitions by name, for corpora of images without clients of their own."""

import dataclasses
import inspect
import types
from typing import Any

import numpy as np

from tff_fedfish.data.images import partition_schemes as schemes
from tff_fedfish.errors import UserError

_SCHEMES = types.MappingProxyType(
  {
    function.__name__: function
    for function in (
      schemes.per_class_over_clients,
      schemes.per_client_over_classes_normalised,
      schemes.per_client_sampling,
      schemes.fixed_classes,
      schemes.pathological_shards,
      schemes.latent_distributions,
    )
  }
)
_MIN_CONCENTRATION = 1e-9

SCHEMES = tuple(_SCHEMES)
"""Names of the schemes."""


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

  def __post_init__(self):
    if self.scheme not in _SCHEMES:
      raise UserError(
        f'`partition.scheme` must be one of {", ".join(SCHEMES)} with images '
        f"or 'merge' with text, found {self.scheme!r}. Change it."
      )
    read = self._read_by_scheme()
    given = self._given()
    problems = [
      f'`partition.{name}` is required by the scheme {self.scheme!r}, but it '
      'is not given'
      for name, default in read.items()
      if default is inspect.Parameter.empty and name not in given
    ]
    problems += [
      f'`partition.{name}` is not read by the scheme {self.scheme!r}, but it '
      f'is {value!r}: leave it out'
      for name, value in given.items()
      if name not in read
    ]
    if problems:
      raise UserError('; '.join(problems) + '.')

  @property
  def is_by_class(self) -> bool:
    """Whether each client has images of one class."""
    return self.scheme == schemes.latent_distributions.__name__

  def split(self, labels: np.ndarray, *, num_classes: int) -> list[np.ndarray]:
    """Divides examples among the clients.

    Args:
      labels: Int [n], from 0 to num_classes - 1.
      num_classes: Classes that there are.

    Returns:
      The rows of each client, int64, ascending: `num_clients` arrays, none of
      which share a row.

    Raises:
      ValueError: If a count is no int or too small.
      UserError: If a parameter is out of range.
    """
    parameters = {'num_clients': self.num_clients, **self._given()}
    for name, value in parameters.items():
      if name.endswith('alpha'):
        _check_concentration(name, value)
      else:
        _check_count(name, value, at_least=0 if name == 'min_examples' else 1)
    return _SCHEMES[self.scheme](
      labels, num_classes=num_classes, seed=self.seed, **parameters
    )

  def parameters(self) -> dict[str, int | float]:
    """Returns all that the scheme reads, given or by default, but the seed."""
    defaults = {
      name: default
      for name, default in self._read_by_scheme().items()
      if default not in (inspect.Parameter.empty, None)
    }
    return {'num_clients': self.num_clients, **defaults, **self._given()}

  def _given(self) -> dict[str, int | float]:
    """Returns the parameters that are set, of those not all schemes have."""
    return {
      name: value
      for name in _OPTIONAL
      if (value := getattr(self, name)) is not None
    }

  def _read_by_scheme(self) -> dict[str, Any]:
    """Returns which of `_OPTIONAL` the scheme reads, with their defaults."""
    parameters = inspect.signature(_SCHEMES[self.scheme]).parameters
    return {
      name: parameters[name].default for name in _OPTIONAL if name in parameters
    }


_OPTIONAL = tuple(
  field.name
  for field in dataclasses.fields(Partition)
  if field.default is not dataclasses.MISSING
)


def _check_count(name: str, value: int, *, at_least: int) -> None:
  is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
  if not is_int or value < at_least:
    raise ValueError(
      f'`{name}` must be an int of at least {at_least}, found {value!r}. '
      'Change it.'
    )


def _check_concentration(name: str, value: float) -> None:
  """Raises UserError if a Dirichlet concentration cannot be drawn with."""
  if not _MIN_CONCENTRATION <= value < np.inf:
    raise UserError(
      f'`{name}` must be a finite number of at least {_MIN_CONCENTRATION}, '
      f'found {value!r}. Change it.'
    )
