"""Shared parts of the declarations of methods with models of clients' own."""

from typing import Any

from tff_fedfish.methods.settings import settings_unlike

_EXPECTED = (
  # Nothing is sent that could be clipped, and the server takes no step.
  ('client_work.max_delta_norm', None),
  ('evaluation.barrier_every_num_rounds', 0),
)


def personal_problems(config: Any) -> list[str]:
  """Returns the clauses that methods with clients' own models share."""
  because = f'with algorithm.name {config.algorithm.name!r}'
  return settings_unlike(config, _EXPECTED, because)
