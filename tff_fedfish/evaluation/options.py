"""Options of an evaluation: one schema for `fedfish evaluate` and sweeps."""

import dataclasses
from typing import Any, Literal

from tff_fedfish.errors import UserError
from tff_fedfish.fields import as_declared, number, unmet_requirement

MIN_SEQUENCES = 4
"""Clients with fewer sequences, or documents, are not evaluated: their 25 % set
would be empty."""
OWN_ROWS = ('own_test', 'own_validation')
"""Client splits in which each client is scored on rows that it keeps for
that."""


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
  max_clients: int | None = number(64, at_least=1)
  """Maximum number of clients, in a fixed random order. Clients with fewer than
  4 documents (sequences or images where data is halved by these), or without
  own rows to score, are skipped.
  all (None in Python and in sweep files): no bound."""
  max_sequences_per_client: int | None = number(64, at_least=MIN_SEQUENCES)
  """Maximum number of sequences per client. all (None in Python and in sweep
  files): no bound."""
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
  """Also replay the next round to measure the Client-Server Barrier."""

  def __post_init__(self):
    problems = [
      f'`--fractions` must {text}' for text in _wrong_fractions(self.fractions)
    ]
    for field in dataclasses.fields(EvaluationOptions):
      value = getattr(self, field.name)
      if field.name != 'fractions' and (
        requirement := unmet_requirement(as_declared(value, field), field)
      ):
        problems.append(
          f'`--{field.name}` must be {requirement}, found {value!r}'
        )
    if problems:
      raise UserError('; '.join(problems) + '.')


def _wrong_fractions(value: Any) -> list[str]:
  if not isinstance(value, list | tuple) or any(
    type(fraction) not in (int, float) for fraction in value
  ):
    return [f'be a list of numbers, found {value!r}']
  problems = []
  if not value or any(not 0 <= fraction <= 0.5 for fraction in value):
    problems.append(
      'be numbers from 0 to 0.5 (0.25 means 25 %; the other half is for '
      f'evaluation), found {",".join(f"{v:g}" for v in value) or "none"}'
    )
  if len(set(value)) != len(value):
    problems.append('differ from each other')
  return problems
