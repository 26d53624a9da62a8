"""The evaluations that follow every run of a sweep."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.evaluate import EvaluationOptions

MOMENTS = ('half', 'last')
"""After half of a run's rounds, and after all."""

_OPTIONS = {
  field.name: field.default for field in dataclasses.fields(EvaluationOptions)
}
# The command line's name, which is shorter.
_BARRIER = 'barrier'
_OPTIONS[_BARRIER] = _OPTIONS.pop('measure_barrier')
_KEYS = ('data', 'name', 'at', *_OPTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
  """One entry of `evaluate`."""

  data: str | None
  """A grouped corpus; None: the run's own."""
  name: str | None
  """Of its directory within the run; None: that of the corpus."""
  at: tuple[str, ...]
  """Of `MOMENTS`."""
  options: Mapping[str, Any]
  """By the names of `fedfish evaluate`; those left out have its defaults."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the entry with all that has a default, as JSON values."""
    options = {**_OPTIONS, **self.options}
    options['fractions'] = list(options['fractions'])
    return {
      'data': self.data,
      'name': self.name,
      'at': list(self.at),
      **options,
    }

  def outputs(self, num_rounds: int, own_data: str) -> dict[str, int]:
    """Returns the directories within a run's `evaluations`.

    Args:
      num_rounds: R of the run.
      own_data: Its own corpus.

    Returns:
      Name -> round: the corpus's name for the last one, with '-half' after it
      for round R / 2.
    """
    name = self.name or pathlib.Path(self.data or own_data).resolve().name
    rounds = {'half': num_rounds // 2, 'last': num_rounds}
    return {
      name if moment == 'last' else f'{name}-{moment}': rounds[moment]
      for moment in self.at
    }

  def command(
    self,
    run: pathlib.Path,
    output: pathlib.Path,
    round_num: int,
    own_data: str,
  ) -> list[str]:
    """Returns the `fedfish evaluate` of one checkpoint.

    Args:
      run: The run's directory.
      output: Where to write.
      round_num: The checkpoint's round.
      own_data: The run's own corpus.
    """
    checkpoint = run / 'checkpoints' / f'round_{round_num:08d}'
    command = ['evaluate', '--checkpoint', str(checkpoint)]
    command += ['--data', self.data or own_data, '--output', str(output)]
    for name, value in self.options.items():
      if name == _BARRIER:
        command += ['--barrier'] if value else []
      elif value is not None:
        text = str(value)
        if name == 'fractions':
          text = ','.join(map(str, value))
        command += [f'--{name}={text}']
    return command


def parse_evaluations(
  value: Any, problems: list[str]
) -> tuple[EvaluationRequest, ...]:
  """Turns what a sweep file says under `evaluate` into requests.

  Args:
    value: A list of dictionaries.
    problems: Receives one clause for each problem.
  """
  if not isinstance(value, list | tuple):
    problems.append(
      f'`evaluate` must be a list of evaluations, found {value!r}'
    )
    return ()
  requests = []
  for position, entry in enumerate(value, start=1):
    found = []
    request = _parse_request(entry, found)
    problems += [f'`evaluate`, number {position}: {text}' for text in found]
    requests += [request] if request else []
  return tuple(requests)


def names_taken_twice(
  requests: Sequence[EvaluationRequest], num_rounds: int, own_data: str
) -> list[str]:
  """Returns the directories that more than one request would write."""
  names = [
    name
    for request in requests
    for name in request.outputs(num_rounds, own_data)
  ]
  return sorted({name for name in names if names.count(name) > 1})


def _parse_request(entry, problems):
  if not isinstance(entry, Mapping):
    problems.append(f'must be a dictionary, found {entry!r}')
    return None
  unknown = sorted(set(map(str, entry)) - set(_KEYS))
  if unknown:
    problems.append(f'{unknown[0]!r} is unknown; known are {", ".join(_KEYS)}')
    return None
  at = entry.get('at', ('last',))
  at = (at,) if isinstance(at, str) else at
  if (
    not isinstance(at, list | tuple)
    or not at
    or len(set(at)) < len(at)
    or any(moment not in MOMENTS for moment in at)
  ):
    problems.append(
      f"`at` must list 'half', 'last' or both, found {entry.get('at')!r}"
    )
    return None
  for key in ('data', 'name'):
    text = entry.get(key)
    if text is not None and not (isinstance(text, str) and text):
      problems.append(f'`{key}` must be a string or None, found {text!r}')
  name = entry.get('name')
  if isinstance(name, str) and ('/' in name or name.startswith('.')):
    problems.append(
      f"`name` must be a directory's name without '/' and without a dot in "
      f'front, found {name!r}'
    )
  options = {key: entry[key] for key in _OPTIONS if key in entry}
  _check_options(options, entry.get('data'), problems)
  if problems:
    return None
  if 'fractions' in options:
    options['fractions'] = tuple(map(float, options['fractions']))
  return EvaluationRequest(
    data=entry.get('data'), name=name, at=tuple(at), options=options
  )


def _check_options(options, data, problems):
  requirements = {
    key: requirement
    for key, value in options.items()
    if (requirement := _unmet_requirement(key, value))
  }
  for key, requirement in requirements.items():
    problems.append(f'`{key}` must be {requirement}, found {options[key]!r}')
  if requirements:
    return
  values = dict(options)
  barrier = values.pop(_BARRIER, False)
  if 'fractions' in values:
    values['fractions'] = tuple(values['fractions'])
  try:
    EvaluationOptions(**values)
  except UserError as error:
    # Its names are those of the command line.
    problems.append(str(error).rstrip('.').replace('`--', '`'))
  of_own_corpus = {
    _BARRIER: barrier,
    'client_split': values.get('client_split') == 'participating',
  }
  for key, is_asked in of_own_corpus.items():
    if data is not None and is_asked:
      problems.append(
        f'`{key}` is of the corpus that the run was trained on; set `data` to '
        f'None, or leave `{key}` out'
      )


def _unmet_requirement(key: str, value: Any) -> str:
  """Returns what type an option must have, '' if it has it."""
  if key == 'fractions':
    is_met = isinstance(value, list | tuple) and all(map(_is_number, value))
    return '' if is_met else 'a list of numbers'
  if key == 'client_split':
    is_met = value in ('held_out', 'participating')
    return '' if is_met else "'held_out' or 'participating'"
  if key == _BARRIER:
    return '' if isinstance(value, bool) else 'true or false'
  if value is None and _OPTIONS[key] is None:
    return ''
  or_none = ' or None' if _OPTIONS[key] is None else ''
  if key == 'learning_rate':
    return '' if _is_number(value) else f'a number{or_none}'
  return '' if type(value) is int else f'an int{or_none}'


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)
