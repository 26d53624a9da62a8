"""Partitions by name, for corpora of images without clients of their own."""

import dataclasses
import inspect
import types
from typing import Any

import numpy as np

from tff_fedfish.data.images import partition_schemes as schemes
from tff_fedfish.data.images.image_clusters import SOURCES
from tff_fedfish.data.images.pachinko import pachinko
from tff_fedfish.errors import UserError

_SCHEMES = types.MappingProxyType(
  {
    function.__name__: function
    for function in (
      pachinko,
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

# What its `labels` are, with defaults; the scheme itself does not read them.
_CLUSTERED = schemes.latent_distributions.__name__
_OF_CLUSTERS = types.MappingProxyType(
  {'clusters': 'labels', 'num_clusters': None}
)

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
  examples_per_client: int | None = None
  """Images of each client (pachinko, as the next two)."""
  root_alpha: float | None = None
  """Concentration of a coarse class."""
  leaf_alpha: float | None = None
  """Concentration of a fine class."""
  clusters: str | None = None
  """Source of the clusters (latent_distributions), see `image_clusters`."""
  num_clusters: int | None = None
  """Clusters to make, >= 1 (latent_distributions)."""

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
    if self.clusters == 'pixels' and self.num_clusters is None:
      problems.append(
        "`partition.num_clusters` is required by the clusters 'pixels', but it "
        'is not given'
      )
    if self.clusters not in (None, *SOURCES) and self.num_clusters is not None:
      problems.append(
        '`partition.num_clusters` is not read with the clusters of a file, '
        f'here {self.clusters!r}, but it is {self.num_clusters}: leave it out'
      )
    if problems:
      raise UserError('; '.join(problems) + '.')

  @property
  def is_of_clusters(self) -> bool:
    """Whether clusters of images are divided, instead of classes."""
    return self.scheme == _CLUSTERED

  def split(
    self,
    labels: np.ndarray,
    *,
    num_classes: int,
    coarse_labels: np.ndarray | None = None,
  ) -> list[np.ndarray]:
    """Divides examples among the clients.

    Args:
      labels: Int [n], from 0 to num_classes - 1; the clusters of the images
        where `is_of_clusters`.
      num_classes: Classes, or clusters, that there are.
      coarse_labels: Int [n]; pachinko needs them, others do not look.

    Returns:
      The rows of each client, int64, ascending: `num_clients` arrays, none of
      which share a row.

    Raises:
      ValueError: If a count is no int or too small.
      UserError: If a parameter is out of range, or pachinko has no coarse
        labels.
    """
    parameters = {'num_clients': self.num_clients, **self._given()}
    parameters = {
      name: value
      for name, value in parameters.items()
      if name not in _OF_CLUSTERS
    }
    for name, value in parameters.items():
      if name.endswith('alpha'):
        _check_concentration(name, value)
      else:
        _check_count(name, value, at_least=0 if name == 'min_examples' else 1)
    if self.scheme == pachinko.__name__:
      parameters['coarse_labels'] = coarse_labels
    return _SCHEMES[self.scheme](
      labels, num_classes=num_classes, seed=self.seed, **parameters
    )

  def parameters(self) -> dict[str, int | float | str]:
    """Returns all that the scheme reads, given or by default, but the seed."""
    defaults = {
      name: default
      for name, default in self._read_by_scheme().items()
      if default not in (inspect.Parameter.empty, None)
    }
    return {'num_clients': self.num_clients, **defaults, **self._given()}

  def _given(self) -> dict[str, int | float | str]:
    """Returns the parameters that are set, of those not all schemes have."""
    return {
      name: value
      for name in _OPTIONAL
      if (value := getattr(self, name)) is not None
    }

  def _read_by_scheme(self) -> dict[str, Any]:
    """Returns which of `_OPTIONAL` the scheme reads, with their defaults."""
    parameters = inspect.signature(_SCHEMES[self.scheme]).parameters
    read = {
      name: parameters[name].default for name in _OPTIONAL if name in parameters
    }
    return read | dict(_OF_CLUSTERS) if self.is_of_clusters else read


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
