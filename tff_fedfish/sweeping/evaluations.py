"""The evaluations that follow every run of a sweep."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_fedfish.evaluation.options import EvaluationOptions, problems_of

MOMENTS = ('half', 'last')
"""After half of a run's rounds, and after all."""

_DEFAULTS = {
  field.name: field.default for field in dataclasses.fields(EvaluationOptions)
}
_KEYS = ('data', 'name', 'at', *_DEFAULTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
  """One entry of `evaluate`."""

  data: str | None = None
  """A grouped corpus. None: the run's own."""
  name: str | None = None
  """Name of its directory within the run. None: that of the corpus."""
  at: tuple[str, ...] = ('last',)
  """Checkpoints to evaluate, from `MOMENTS`."""
  options: Mapping[str, Any]
  """Values of fields of `EvaluationOptions`; those left out have its
  defaults."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the entry with all of its defaults, as JSON values."""
    values = {'data': self.data, 'name': self.name, 'at': list(self.at)}
    values |= _DEFAULTS | dict(self.options)
    return {**values, 'fractions': list(values['fractions'])}

  def commands(
    self, run: pathlib.Path, num_rounds: int, own_data: str
  ) -> dict[pathlib.Path, list[str]]:
    """Returns the command line of each `fedfish evaluate`, by its output.

    Outputs are named after the corpus, with '-half' added after half of the
    rounds.

    Args:
      run: The run's directory.
      num_rounds: Rounds that it is trained for.
      own_data: The corpus that it is trained on.
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
    outputs = {
      'half': (f'{name}-half', num_rounds // 2),
      'last': (name, num_rounds),
    }
    return {
      run / 'evaluations' / output: [
        'evaluate',
        *('--checkpoint', str(run / 'checkpoints' / f'round_{round_num:08d}')),
        *('--data', data, '--output', str(run / 'evaluations' / output)),
        *options,
      ]
      for output, round_num in map(outputs.get, self.at)
    }


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
    found = _problems_of_entry(entry)
    problems += [f'`evaluate`, number {position}: {text}' for text in found]
    if not found:
      at = entry.get('at', ('last',))
      options = {key: entry[key] for key in _DEFAULTS if key in entry}
      if 'fractions' in options:
        options['fractions'] = tuple(map(float, options['fractions']))
      requests.append(
        EvaluationRequest(
          data=entry.get('data'),
          name=entry.get('name'),
          at=(at,) if isinstance(at, str) else tuple(at),
          options=options,
        )
      )
  return tuple(requests)


def _problems_of_entry(entry):
  if not isinstance(entry, Mapping):
    return [f'must be a dictionary, found {entry!r}']
  unknown = sorted(set(map(str, entry)) - set(_KEYS))
  if unknown:
    return [f'{unknown[0]!r} is unknown; known are {", ".join(_KEYS)}']
  problems = problems_of(entry)
  at = entry.get('at', 'last')
  moments = [at] if isinstance(at, str) else at
  if (
    not isinstance(moments, list | tuple)
    or not moments
    or any(moment not in MOMENTS for moment in moments)
    or len(set(moments)) < len(moments)
  ):
    problems.append(f"`at` must list 'half', 'last' or both, found {at!r}")
  data, name = entry.get('data'), entry.get('name')
  for key, text in (('data', data), ('name', name)):
    if text is not None and not (isinstance(text, str) and text):
      problems.append(f'`{key}` must be a string or None, found {text!r}')
  if isinstance(name, str) and ('/' in name or name.startswith('.')):
    problems.append(
      f"`name` must be a directory's name without '/' and without a dot in "
      f'front, found {name!r}'
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
