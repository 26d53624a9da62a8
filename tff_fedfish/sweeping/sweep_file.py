"""Reads a sweep file: a config file that also has a `get_sweep()`."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.config import given
from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.options import EvaluationOptions, problems_of
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.learning_rate_search import parse_search

BUDGETS = ('fixed_rounds', 'fixed_compute')
"""How long runs last; see `budgets.rounds_by_budget`."""

_METHOD = 'algorithm.name'
_ADVICE = 'Correct the file; configs/debian_sweep.py is an example.'
_KEYS = (
  *('budget', 'evaluate', 'grid', 'learning_rate_search'),
  'reference_local_epochs',
)
_OPTIONS = {
  field.name: field.default for field in dataclasses.fields(EvaluationOptions)
}
_EVALUATION_KEYS = ('data', 'name', *_OPTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
  """One entry of `evaluate`."""

  data: str | None = None
  """A grouped corpus. None: the run's own."""
  name: str | None = None
  """Name of its directory within the run. None: that of the corpus."""
  options: Mapping[str, Any]
  """Values of fields of `EvaluationOptions`; those left out have its
  defaults."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the entry with all of its defaults, as JSON values."""
    values = {'data': self.data, 'name': self.name}
    options = _OPTIONS | dict(self.options)
    return {**values, **options, 'fractions': list(options['fractions'])}

  def command(
    self, run: pathlib.Path, num_rounds: int, own_data: str
  ) -> tuple[pathlib.Path, list[str]]:
    """Returns the output and the command line of a `fedfish evaluate`.

    The output in the run's directory is named after the corpus, its own or
    another.
    """
    data = self.data or own_data
    name = self.name or pathlib.Path(data).resolve().name
    options = []
    for option, value in self.options.items():
      if isinstance(value, bool):
        options += [f'--{option}'] if value else []
      elif value is not None:
        is_list = isinstance(value, tuple)
        text = ','.join(map(str, value)) if is_list else value
        options.append(f'--{option}={text}')
    output = run / 'evaluations' / name
    return output, [
      'evaluate',
      *('--checkpoint', str(run / 'checkpoints' / f'round_{num_rounds:08d}')),
      *('--data', data, '--output', str(output), *options),
    ]


class SweepFile:
  """A sweep file as it was when it was read.

  Attributes:
    path: Path as typed.
    base: Config that `get_config()` and the overrides give.
    axes: The grid.
    budgets: Budgets of every point of the grid, from `BUDGETS`.
    reference_local_epochs: Local epochs with which the base's rounds cost the
      fixed compute.
    search: The search for learning rates, or None.
    evaluations: Requests for evaluations after every run's training.
  """

  def __init__(self, path: str | os.PathLike, overrides: Sequence[str] = ()):
    """Reads and checks a sweep file.

    Args:
      path: A Python file whose `get_config()` returns a config as for
        `fedfish train`, and `get_sweep()` a ConfigDict of values. It is run.
      overrides: Arguments as typed: '--config.section.setting=value'.

    Raises:
      UserError: If the file cannot be used, an override is none or sets what
        the sweep varies, or `get_sweep()` returns anything wrong.
    """
    self.path = str(path)
    self._values = given.read_values(path, overrides)
    sweep = given.call_in_file(path, 'get_sweep', _ADVICE)
    problems = [
      f'`{name}` is unknown; known are {", ".join(_KEYS)}'
      for name in sorted({*map(str, sweep)} - {*_KEYS})
    ]
    self.axes = grid.parse_grid(sweep.get('grid'), problems)
    grid.require_fair(self.axes, problems)
    # The base may hold settings of any method of the grid.
    for axis in self.axes:
      for row in axis.values if _METHOD in axis.names else ():
        registry.find_or_none(str(row[axis.names.index(_METHOD)]))
    try:
      self.base = config_loading.build_config(self._values)[0]
    except UserError:
      if problems:
        # Without the grid's methods their settings look unknown.
        raise self._error(problems) from None
      raise
    self.reference_local_epochs = epochs = sweep.get(
      'reference_local_epochs', self.base.client_work.num_local_epochs
    )
    if type(epochs) is not int or epochs < 1:
      problems.append(
        '`reference_local_epochs` must be an int of at least 1, found '
        f'{epochs!r}'
      )
    self.budgets = parse_budgets(sweep.get('budget', BUDGETS[0]), problems)
    self.search = parse_search(
      sweep.get('learning_rate_search'), self.axes, self.base, problems
    )
    self.evaluations = parse_evaluations(sweep.get('evaluate', ()), problems)
    if problems:
      raise self._error(problems)
    # The key of `get_sweep()` that varies each setting.
    self._varied = {n: 'grid' for axis in self.axes for n in axis.names}
    for axis in self.search.axes if self.search else ():
      self._varied |= dict.fromkeys(axis.names, 'learning_rate_search')
    for name in sorted(self._values.overridden & self._varied.keys()):
      raise UserError(
        f'`--config.{name}` must be left out: `{self._varied[name]}` in '
        f'{self.path!r} varies it.'
      )

  def to_json_dict(self) -> dict[str, Any]:
    """Returns everything but the base config as sweep.json keeps it."""
    return {
      'grid': grid.to_json_dict(self.axes),
      'budget': list(self.budgets),
      'reference_local_epochs': self.reference_local_epochs,
      'learning_rate_search': self.search and self.search.to_json_dict(),
      'evaluate': [request.to_json_dict() for request in self.evaluations],
    }

  def config(self, settings: Settings, name: str) -> TrainConfig:
    """Returns the base config with other values of some settings.

    Errors name the run.

    Raises:
      ConfigError: Naming all unknown and wrong settings.
    """
    source = repr(f'{self.path}, run {name}')
    values = self._values.with_settings(settings, source)
    return config_loading.build_config(values)[0]

  def without_unread(self, settings: Settings) -> Settings:
    """Returns the settings of a run without those its method does not read.

    Settings that are tied to others stay.
    """
    method = registry.find_or_none(
      settings.get(_METHOD, self.base.algorithm.name)
    )
    axes = (*self.axes, *(self.search.axes if self.search else ()))
    tied = {n for axis in axes if len(axis.names) > 1 for n in axis.names}
    return {
      name: value
      for name, value in settings.items()
      if name in tied or method is None or not _is_unread(name, method)
    }

  def require_read(
    self, configs: Iterable[TrainConfig], *, of_search: bool = False
  ) -> list[str]:
    """Checks that some run reads each override and each varied setting.

    Of the runs `of_search`, only the settings that are searched are checked.

    Returns:
      Settings of the base that no run reads, as 'section.setting'.

    Raises:
      UserError: Naming the first setting that no run reads.
    """
    methods = {config.algorithm.name: config.method for config in configs}
    # Places that may be blamed, by setting.
    places = {
      name: f'`{key}` in {self.path!r}'
      for name, key in self._varied.items()
      if not of_search or key == 'learning_rate_search'
    }
    if not of_search:
      of_base = [n for n in self._values.settings if n.startswith('algorithm.')]
      places |= {n: f'`--config.{n}`' for n in self._values.overridden}
      places = dict.fromkeys(of_base, '') | places
    unread = [
      name
      for name in sorted(places)
      if all(_is_unread(name, method) for method in methods.values())
    ]
    for name in unread:
      if place := places[name]:
        readers = ', '.join(registry.readers(name.partition('.')[2]))
        raise UserError(
          f'{place} sets {name!r}, which no run of the '
          f'{"search" if of_search else "sweep"} reads: their methods are '
          f'{", ".join(methods)}, and it is read by {readers}. Leave it out.'
        )
    return unread

  def _error(self, problems: list[str]) -> UserError:
    return UserError(f'Invalid sweep {self.path!r}: {"; ".join(problems)}.')


def parse_budgets(value: Any, problems: list[str]) -> tuple[str, ...]:
  """Returns one or a list of budgets as a tuple, in the order of `BUDGETS`.

  Adds a clause to `problems` if it is neither.
  """
  names = [value] if isinstance(value, str) else value
  is_list = isinstance(names, list | tuple) and len(names) > 0
  if not is_list or not all(name in BUDGETS for name in names):
    problems.append(
      f'`budget` must be {" or ".join(map(repr, BUDGETS))}, or a list of '
      f'them, found {value!r}'
    )
    return ()
  return tuple(name for name in BUDGETS if name in names)


def parse_evaluations(
  value: Any, problems: list[str]
) -> tuple[EvaluationRequest, ...]:
  """Returns the requests of `evaluate` in a sweep file.

  Adds a clause to `problems` for each problem.
  """
  if not isinstance(value, list | tuple):
    problems.append(
      f'`evaluate` must be a list of evaluations, found {value!r}'
    )
    return ()
  requests = []
  for position, entry in enumerate(value, start=1):
    found = _problems_of_evaluation(entry)
    problems += [f'`evaluate`, number {position}: {text}' for text in found]
    if found:
      continue
    options = {key: entry[key] for key in _OPTIONS if key in entry}
    if 'fractions' in options:
      options['fractions'] = tuple(map(float, options['fractions']))
    values = {key: entry[key] for key in ('data', 'name') if key in entry}
    if values.get('data'):
      values['data'] = os.path.expanduser(values['data'])
    requests.append(EvaluationRequest(options=options, **values))
  return tuple(requests)


def _is_unread(setting: str, method: Method) -> bool:
  """Says whether only methods other than this one read a setting."""
  section, _, leaf = setting.partition('.')
  return (
    section == AlgorithmConfig.section
    and leaf not in registry.settings_of(method)
    and bool(registry.readers(leaf))
  )


def _problems_of_evaluation(entry):
  if not isinstance(entry, Mapping):
    return [f'must be a dictionary, found {entry!r}']
  unknown = sorted(set(map(str, entry)) - set(_EVALUATION_KEYS))
  if unknown:
    return [
      f'{unknown[0]!r} is unknown; known are {", ".join(_EVALUATION_KEYS)}'
    ]
  problems = problems_of(entry)
  data, name = entry.get('data'), entry.get('name')
  for key, text in (('data', data), ('name', name)):
    if text is not None and not (isinstance(text, str) and text):
      problems.append(f'`{key}` must be a string or None, found {text!r}')
  if isinstance(name, str) and ('/' in name or name.startswith('.')):
    problems.append(
      f"`name` must be a directory's name without '/' and without a dot in "
      f'front, found {name!r}'
    )
  if entry.get('client_split') == 'own_validation':
    problems.append(
      "`client_split` must not be 'own_validation', by which "
      "`learning_rate_search` chooses; set 'own_test'"
    )
  # What only the corpus of the run's training has.
  own = {'barrier': True, 'client_split': 'participating'}
  problems += [
    f'`{key}` is of the corpus that the run was trained on; set `data` to '
    f'None, or leave `{key}` out'
    for key, asked in own.items()
    if data is not None and entry.get(key) == asked
  ]
  return problems
