"""Reads a laboratory file: a config file that also has a `get_laboratory()`."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish import printing
from tff_fedfish.config import files as config_files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.laboratory.weightings import parse_weightings
from tff_fedfish.sweeping import grid

_ADVICE = 'Correct the file; configs/mnist_laboratory.py is an example.'
_DEFAULTS = {
  'grid': None,
  'local_epochs': None,
  'cohort_sizes': None,
  'weightings': None,
  'num_validation_clients': 32,
  'num_scored_clients': 64,
  'max_sequences_per_client': 0,
}


@dataclasses.dataclass(frozen=True)
class Point:
  """One training of a cohort."""

  name: str
  """Name of its files."""
  settings: Mapping[str, Any]
  """Settings that vary, by 'section.setting'."""
  config: TrainConfig
  """Config with the largest cohort; its local epochs are not read."""


class LaboratoryFile:
  """A laboratory file as it was when it was read.

  Attributes:
    path: Path as typed.
    base: Config of `get_config()` and the overrides.
    local_epochs: Local epochs at which clients are looked at, ascending.
    cohort_sizes: Sizes of cohorts, ascending; each is a prefix of the next.
    weightings: The plain mean and those that are compared with it.
    num_validation_clients: Held-out clients on which step lengths are chosen.
    num_scored_clients: Further held-out clients that are scored.
    max_sequences_per_client: Rows used of each of them; None: all.
  """

  def __init__(self, path: str | os.PathLike, overrides: Sequence[str] = ()):
    """Reads and checks the file, which is run.

    Args:
      path: A Python file whose `get_config()` returns a config as for
        `fedfish train`, and `get_laboratory()` a ConfigDict of values.
      overrides: Arguments as typed: '--config.section.setting=value'.

    Raises:
      UserError: If the file cannot be used, or `get_laboratory()` returns
        anything wrong.
    """
    self.path = str(path)
    self._values = config_loading.read_values(path, overrides)
    self.base = config_loading.build_config(self._values)[0]
    given = config_files.plain(
      config_files.call_in_file(pathlib.Path(path), 'get_laboratory', _ADVICE)
    )
    problems = [
      f'`{name}` is unknown; known are {", ".join(_DEFAULTS)}'
      for name in sorted(given.keys() - _DEFAULTS.keys())
    ]
    found = _DEFAULTS | given
    self._axes = grid.parse_grid(found['grid'], problems)
    self.local_epochs = _ascending(found, 'local_epochs', problems)
    self.cohort_sizes = _ascending(found, 'cohort_sizes', problems)
    self.weightings = parse_weightings(
      found['weightings'], problems, is_text=not self.base.data.holds_images
    )
    for name in ('num_validation_clients', 'num_scored_clients'):
      _require_number(found, name, 1, problems)
      setattr(self, name, found[name])
    _require_number(found, 'max_sequences_per_client', 0, problems)
    self.max_sequences_per_client = found['max_sequences_per_client'] or None
    if problems:
      raise UserError(
        f'Invalid laboratory {self.path!r}: {"; ".join(problems)}.'
      )

  def to_json_dict(self) -> dict[str, Any]:
    """Returns all that fixes the numbers, as laboratory.json keeps it."""
    return {
      'config': config_loading.to_json_dict(self.base),
      'grid': grid.to_json_dict(self._axes),
      'local_epochs': list(self.local_epochs),
      'cohort_sizes': list(self.cohort_sizes),
      'weightings': [dataclasses.asdict(w) for w in self.weightings],
      'num_validation_clients': self.num_validation_clients,
      'num_scored_clients': self.num_scored_clients,
      'max_sequences_per_client': self.max_sequences_per_client,
    }

  def points(self) -> list[Point]:
    """Returns the points of the grid.

    Raises:
      ConfigError: Naming all settings of a point that are wrong.
    """
    points = []
    for settings in grid.product(self._axes):
      name = grid.run_name(self._axes, settings)
      values = config_files.with_settings(
        self._values,
        {**settings, 'cohorts.cohort_size': self.cohort_sizes[-1]},
        repr(f'{self.path}, {name}'),
      )
      points.append(
        Point(name, settings, config_loading.build_config(values)[0])
      )
    return points

  def print_plan(self) -> None:
    """Prints the cohorts and the weightings."""
    printing.print_table(
      f'{self.path}: cohorts of {self.cohort_sizes[-1]} clients, '
      f'{self.local_epochs[-1]} local epochs',
      [''],
      [[point.name] for point in self.points()],
    )
    printing.print_table(
      'Each is averaged at local epochs '
      f'{", ".join(map(str, self.local_epochs))} and for cohorts of '
      f'{", ".join(map(str, self.cohort_sizes))}, weighed by',
      [''],
      [[weighting.label()] for weighting in self.weightings],
    )

  def cells(self) -> Iterator[tuple[int, int]]:
    """Yields (local epochs, cohort size) of the cells of each point."""
    return itertools.product(self.local_epochs, self.cohort_sizes)


def _ascending(found, name, problems) -> tuple[int, ...]:
  values = found[name]
  if (
    not isinstance(values, list)
    or not values
    or any(type(value) is not int or value < 1 for value in values)
    or sorted(set(values)) != values
  ):
    problems.append(
      f'`{name}` must be a list of ascending ints of at least 1, found '
      f'{values!r}'
    )
    return ()
  return tuple(values)


def _require_number(found, name, least, problems):
  if type(found[name]) is not int or found[name] < least:
    problems.append(
      f'`{name}` must be an int of at least {least}, found {found[name]!r}'
    )
