"""Evaluations after every run's training, as a sweep file asks for them."""

import dataclasses
import pathlib
import re
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.options import EvaluationOptions
from tff_fedfish.evaluation.plan import require_measurable
from tff_fedfish.fields import as_declared, path, unmet_requirement
from tff_fedfish.sweeping import grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRequest(EvaluationOptions):
  """One entry of `evaluate`: what `fedfish evaluate` takes, and three more."""

  data: str | None = path(None)
  """A grouped corpus. None: that of the run."""
  name: str | None = None
  """Name of its directory within the run. None: that of the corpus."""
  best: bool = False
  """Whether the best checkpoint is measured, not the last."""

  def command(
    self, run: pathlib.Path, own_data: str
  ) -> tuple[pathlib.Path, list[str]]:
    """Returns the output and the command line of a `fedfish evaluate`.

    Args:
      run: The run's directory.
      own_data: The corpus that it trains on.
    """
    data = self.data or own_data
    name = pathlib.Path(data).resolve().name + '_best' * self.best
    name = self.name or name
    output, flags = run / 'evaluations' / name, []
    for field in dataclasses.fields(EvaluationOptions):
      value = getattr(self, field.name)
      if value is True:
        flags.append(f'--{field.name}')
      elif value != field.default:
        is_list = isinstance(value, tuple)
        text = ','.join(map(str, value)) if is_list else value
        # None in place of a default is a bound that is lifted.
        text = 'all' if value is None else text
        flags.append(f'--{field.name}={text}')
    return output, [
      *('evaluate', '--checkpoint', f'{run}{"@best" * self.best}'),
      *('--data', data),
      *('--output', str(output), *flags),
    ]

  def require_measurable(self, run_name: str, config: TrainConfig) -> None:
    """Raises UserError if the evaluation of a run is known to fail."""
    own = config.data.directory
    is_own = self.data in (None, own)
    try:
      if self.best and not config.checkpoints.keep_best:
        raise UserError('`best` requires `checkpoints.keep_best`. Set it.')
      require_measurable(config, self, self.data or own, is_own_corpus=is_own)
    except UserError as error:
      raise UserError(
        f'`evaluate` cannot measure the run {run_name!r}: {error}'
      ) from error


def parse_evaluation(entry: Any) -> EvaluationRequest:
  """Returns an entry of `evaluate` in a sweep file.

  Raises:
    ValueError: Naming what is wrong with it.
  """
  fields = grid.fields_of(EvaluationRequest, entry)
  values = {name: as_declared(entry[name], fields[name]) for name in entry}
  if isinstance(entry.get('fractions'), list):
    values['fractions'] = tuple(entry['fractions'])
  for name in ('data', 'name', 'best'):
    if wanted := unmet_requirement(
      values.get(name, fields[name].default), fields[name]
    ):
      raise ValueError(f'`{name}` must be {wanted}')
  if re.search('^[.]|/', values.get('name') or ''):
    raise ValueError(
      "`name` must be the name of a directory, without '/' and a leading '.'"
    )
  if entry.get('client_split') == 'own_validation':
    raise ValueError(
      "`client_split` must not be 'own_validation', by which "
      "`learning_rate_search` chooses; set 'own_test'"
    )
  try:
    return EvaluationRequest(**values)
  except UserError as error:
    raise ValueError(str(error).removesuffix('.')) from error
