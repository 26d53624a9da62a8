"""Options of an evaluation: one schema for `fedfish evaluate` and sweeps."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.personalization import MIN_SEQUENCES
from tff_fedfish.evaluation.results import OWN_ROWS
from tff_fedfish.fields import as_declared, number, unmet_requirement


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
  """Measurements of an evaluation and the clients that they are made on.

  Raises:
    UserError: On construction, naming every option that is wrong as the
      command line does.
  """

  fractions: tuple[float, ...] = (0.0, 0.25, 0.5)
  """Fractions of a client's data to fine-tune on before scoring, each in
  [0, 0.5]; the other half is kept for scoring."""
  client_split: Literal[
    'held_out', 'participating', 'own_test', 'own_validation'
  ] = 'held_out'
  """Clients of the run's own corpus to evaluate; in another corpus all clients
  are held out. own_test: the clients that train, each on its own test rows and
  with its personal model if it has one. own_validation: the same on validation
  rows."""
  held_out_from: float = number(0.0, at_least=0, below=1)
  """Lowest place in [0, 1) of a held-out client of the run's own corpus; those
  below it are not read (docs/sweep.md)."""
  max_clients: int | None = number(None, at_least=1)
  """Maximum number of clients. Default: all with at least 4 sequences."""
  max_sequences_per_client: int | None = number(None, at_least=MIN_SEQUENCES)
  """Maximum number of sequences per client. Default: all."""
  sequence_length: int | None = number(None, at_least=1)
  """Tokens per sequence, at most the model's; text only. Default: as in
  training."""
  split_unit: Literal['documents', 'sequences', None] = None
  """Unit in which a client's text is halved. Default: as in the run."""
  personalization_epochs: int = number(4, at_least=1)
  """Epochs of fine-tuning."""
  learning_rate: float | None = number(None, above=0)
  """Learning rate of the fine-tuning. Default: the run's client learning rate;
  0.1 for a directory of transformers."""
  barrier: bool = False
  """Also measure the Client-Server Barrier: train the next round's clients
  again and compare the new global model with theirs."""

  def __post_init__(self):
    problems = problems_of(vars(self), '--')
    if problems:
      raise UserError('; '.join(problems) + '.')


def require_measurable(
  config: TrainConfig,
  options: EvaluationOptions,
  data: str | os.PathLike,
  *,
  is_own_corpus: bool,
) -> None:
  """Checks options against the config of the run that is evaluated.

  Args:
    config: The run's.
    options: What to measure.
    data: Path of the corpus, for errors.
    is_own_corpus: Whether it is the corpus that the run trained on.

  Raises:
    UserError: Naming the first option that the run cannot be measured with.
  """
  is_held_out = is_own_corpus and options.client_split == 'held_out'
  if options.held_out_from and not is_held_out:
    raise UserError(
      "`--held_out_from` is read only with the run's own corpus and "
      "`--client_split` 'held_out'. Leave it out."
    )
  if options.barrier:
    _require_barrier(config, data, is_own_corpus)
  if part := own_rows_of(config, options):
    _require_own_rows(config, options, data, is_own_corpus, part)
  elif not is_own_corpus:
    if options.client_split != 'held_out':
      raise UserError(
        f'`--client_split` is {options.client_split!r}, but all clients of '
        f'{str(data)!r}, which is not the corpus of the run, are held out. '
        'Leave `--client_split` out.'
      )
  # None: the corpus holds clients out itself.
  elif config.client_splits.held_out_fraction == 0:
    if options.client_split == 'held_out':
      raise_no_clients(config, options)


def raise_no_clients(config: TrainConfig, options: EvaluationOptions) -> None:
  """Raises the UserError of a run without clients of the split."""
  if options.held_out_from:
    raise UserError(
      f'`--held_out_from` {options.held_out_from} must be the place of a '
      'held-out client or below one, but all lie below it. Lower it.'
    )
  raise UserError(
    f'`--client_split` is {options.client_split!r}, but the run has no such '
    'clients (held_out_fraction '
    f'{config.client_splits.held_out_fraction}). Name another split.'
  )


def own_rows_of(config: TrainConfig, options: EvaluationOptions) -> str | None:
  """Returns which of their own rows clients are scored on.

  'own_test' or 'own_validation'. None: whole clients are scored, by halves.
  """
  if options.client_split in OWN_ROWS:
    return options.client_split
  return 'own_test' if config.method.personal(config) is not None else None


def problems_of(options: Mapping[str, Any], prefix: str = '') -> list[str]:
  """Returns a clause for each option whose value is not allowed.

  Args:
    options: Values by option. Options that are left out are not checked.
    prefix: Text before each option's name, such as '--'.
  """
  problems = []
  for field in dataclasses.fields(EvaluationOptions):
    if field.name not in options:
      continue
    name, value = f'`{prefix}{field.name}`', options[field.name]
    if field.name == 'fractions':
      problems += [f'{name} must {text}' for text in _wrong_fractions(value)]
    elif requirement := unmet_requirement(as_declared(value, field), field):
      problems.append(f'{name} must be {requirement}, found {value!r}')
  return problems


def _wrong_fractions(value: Any) -> list[str]:
  if not isinstance(value, list | tuple) or any(
    type(fraction) not in (int, float) for fraction in value
  ):
    return [f'be a list of numbers, found {value!r}']
  problems = []
  if not value or any(not 0 <= fraction <= 0.5 for fraction in value):
    problems.append(
      'be numbers from 0 to 0.5 (the other half is for evaluation), found '
      f'{",".join(map(str, value)) or "none"}'
    )
  if len(set(value)) != len(value):
    problems.append('differ from each other')
  return problems


def _require_barrier(config, data, is_own_corpus):
  """Raises UserError where no round can be replayed."""
  name = repr(config.algorithm.name)
  if config.method.solver is not None:
    raise UserError(
      f'`--barrier` replays a round, which ends with a solve of {name} that is '
      'not replayed. Leave it out, or measure the barrier in training with '
      '`--config.evaluation.barrier_every_num_rounds`.'
    )
  if len(config.phases) > 1:
    raise UserError(f'`--barrier` is not available for {name}. Leave it out.')
  if config.method.personal(config) is not None:
    raise UserError(
      '`--barrier` compares clients with the global model, but each client of '
      f'{name} has a model of its own. Leave it out.'
    )
  if not is_own_corpus:
    raise UserError(
      '`--barrier` replays a round of training, so `--data` must be the corpus '
      f'of the run, but {str(data)!r} is another. Leave `--barrier` out.'
    )


def _require_own_rows(config, options, data, is_own_corpus, part):
  """Raises UserError where clients cannot be scored on rows of their own."""
  split, name = f'`--client_split` {part!r}', repr(config.algorithm.name)
  if not is_own_corpus:
    raise UserError(
      f'{split}, which is that of methods with personal models, scores the '
      'clients that the run trained, so `--data` must be its corpus, but '
      f'{str(data)!r} is another. Name that of the run.'
    )
  default = EvaluationOptions()
  if options.fractions not in (default.fractions, (0.0,)):
    raise UserError(
      f'`--fractions` must be 0 with {split}, whose models are not fine-tuned, '
      f'found {",".join(map(str, options.fractions))} with algorithm.name '
      f'{name}. Leave it out.'
    )
  unread = ('sequence_length', 'split_unit', 'learning_rate')
  for option in (*unread, 'personalization_epochs', 'barrier'):
    if (value := getattr(options, option)) != getattr(default, option):
      raise UserError(
        f'`--{option}` is not read with {split}, found {value!r}. Leave it out.'
      )
  validation, test = config.row_fractions
  if part == 'own_validation' and not validation:
    raise UserError(
      f'{split} requires clients with validation rows, but the run has none. '
      'Train with `--config.client_splits.validation_fraction` above 0.'
    )
  if part == 'own_test' and not (test or config.partition.has_twins):
    raise UserError(
      f'{split} requires clients with test rows, but the run has none. Train '
      'with `--config.client_splits.test_fraction` above 0, or with '
      "`--config.partition.held_out` 'matching'."
    )
