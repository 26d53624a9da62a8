"""Ways to weigh the clients of a cohort: FedFish's settings, and controls."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighting:
  """How clients are weighed; the first four are settings of FedFish."""

  fisher_power: float = 1.0
  """p: clients are weighed by F^p. 0: the plain mean, which is FedAvg's."""
  plain_mean_fraction: float = 0.0
  """s: part of the plain mean. 1: the plain mean."""
  plain_mean_tensors: Literal['none', 'logits'] = 'none'
  """Tensors that take the plain mean."""
  fisher_normalization: Literal['none', 'tensor_mean'] = 'none'
  """Mass of a client in a tensor."""
  fisher_of: Literal['own', 'another'] = 'own'
  """Client whose diagonal weighs a delta. 'another': the next one's of the
  cohort, a control with the same diagonals and none of their information."""
  step_length: Literal['own', 'plain_mean'] = 'own'
  """'plain_mean' scales each tensor to the norm that it has in the plain
  mean, a control for longer steps."""

  @property
  def is_plain_mean(self) -> bool:
    """Whether nothing is left of the Fisher weights."""
    return self.fisher_power == 0 or self.plain_mean_fraction == 1

  def label(self) -> str:
    """Returns a short name, such as 'p0.5 s0.5, another's F'."""
    if self.is_plain_mean:
      return 'plain mean'
    parts = [f'p{self.fisher_power:g} s{self.plain_mean_fraction:g}']
    if self.plain_mean_tensors == 'logits':
      parts.append('logits plain')
    if self.fisher_normalization == 'tensor_mean':
      parts.append('tensor mean')
    if self.fisher_of == 'another':
      parts.append("another's F")
    if self.step_length == 'plain_mean':
      parts.append('plain length')
    return ', '.join(parts)


PLAIN_MEAN = Weighting(fisher_power=0.0)
"""FedAvg's."""


_MIX = dict(fisher_power=0.5, plain_mean_fraction=0.5)


def family(*, is_text: bool) -> tuple[Weighting, ...]:
  """Returns FedFish's weights, mixes with the plain mean, and controls.

  Args:
    is_text: Whether some leave the tensors of the logits to the plain mean.
  """
  rows = [
    dict(fisher_power=power, plain_mean_fraction=fraction)
    for power in (1.0, 0.75, 0.5, 0.25)
    for fraction in (0.0, 0.25, 0.5, 0.75)
  ]
  for row in ({}, _MIX):
    rows.append(row | dict(fisher_of='another'))
    rows.append(row | dict(step_length='plain_mean'))
    if is_text:
      rows.append(row | dict(plain_mean_tensors='logits'))
  rows.append(dict(fisher_normalization='tensor_mean'))
  return (PLAIN_MEAN, *(Weighting(**row) for row in rows))


def parse_weightings(
  given: Any, problems: list[str], *, is_text: bool
) -> tuple[Weighting, ...]:
  """Returns the plain mean and the weightings of a laboratory file.

  Args:
    given: A list of dictionaries of fields; None: `family`.
    problems: Receives a clause for each problem.
    is_text: Whether the model is a language model.
  """
  if given is None:
    return family(is_text=is_text)
  if not isinstance(given, list):
    problems.append(f'`weightings` must be a list, found {given!r}')
    return ()
  choices = {
    name: typing.get_args(annotation)
    for name, annotation in typing.get_type_hints(Weighting).items()
  }
  found = [PLAIN_MEAN]
  for position, entry in enumerate(given, start=1):
    where = f'`weightings`, number {position}:'
    if not isinstance(entry, Mapping) or entry.keys() - choices.keys():
      problems.append(
        f'{where} must be a dictionary with some of {", ".join(choices)}, '
        f'found {entry!r}'
      )
      continue
    clauses = [
      f'{where} `{name}` must be {_wanted(choices[name])}, found {value!r}'
      for name, value in entry.items()
      if not _fits(value, choices[name])
    ]
    if entry.get('plain_mean_tensors') == 'logits' and not is_text:
      clauses.append(
        f"{where} `plain_mean_tensors` must be 'none' with images, found "
        "'logits'"
      )
    problems += clauses
    if not clauses:
      found.append(Weighting(**entry))
  return tuple(dict.fromkeys(found))


def _fits(value, choices):
  if choices:
    return value in choices
  return isinstance(value, int | float) and 0 <= value <= 1


def _wanted(choices):
  return f'one of {", ".join(choices)}' if choices else 'from 0 to 1'
