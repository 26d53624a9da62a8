"""One-shot methods: clients train once, and the server solves for a model.

Clients upload their weights with a summary of their data (`uploads.py`,
`client_work.py`); a method's `solve` makes one model of all uploads. More than
one round is few-shot learning: the solution is the next round's start.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from tff_fedfish.fields import number, setting
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.one_shot.uploads import (
  UploadKind,
  summary_models,
  uploaded_models,
)
from tff_fedfish.methods.parts import ClientCost, Solver, Traffic
from tff_fedfish.methods.settings import (
  UNIT_STEP,
  AlgorithmConfig,
  settings_unlike,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneShotConfig(AlgorithmConfig):
  """Settings that every one-shot method reads."""

  num_validation_rows: int = number(500, at_least=0)
  """Rows that the server draws, with replacement, from those of all training
  clients, and scores weights on. Not federated: a real server has none. 0:
  nothing is chosen by a score."""
  compression: Literal['none', 'paper'] = 'none'
  """'paper': uploads are quantized, and K-FAC factors and Gram matrices are of
  low rank, as in FedFisher's appendix C."""
  keeps_uploads: bool = setting(False, changes_results=False)
  """Whether RUN/uploads stays, for `fedfish solve`."""


def one_shot_method(
  *,
  name: str,
  summary_of: Callable[[Any], str],
  problems: Callable[[Any], list[str]] = lambda config: [],
  solve_models: Callable[[Any, int], float],
  **fields: Any,
) -> Method:
  """Returns the declaration of a one-shot method.

  Args:
    name: The method's name, that of its module, which has `solve`.
    summary_of: `UploadKind.summary` with a config.
    problems: `Method.problems` beyond those of every one-shot method.
    solve_models: Models that the solver holds, given a number of clients.
    **fields: Fields of `Method`.
  """

  def upload(config):
    return UploadKind(summary_of(config), config.algorithm.compression)

  return Method(
    name=name,
    builder='tff_fedfish.methods.one_shot.client_work:build_one_shot',
    arguments=lambda config: {
      'shape': config.model_shape(),
      **upload(config)._asdict(),
    },
    traffic=lambda config: Traffic(
      uploaded_models(config.model_shape(), upload(config)), 1
    ),
    cost=lambda config: _cost(config, upload(config)),
    problems=lambda config: [*_problems(config), *problems(config)],
    solver=Solver(
      f'tff_fedfish.methods.one_shot.{name}:solve', upload, solve_models
    ),
    example='fashion_mnist_one_shot',
    **fields,
  )


def _cost(config, kind):
  if kind.summary in ('none', 'class_counts'):
    return ClientCost()
  num_models = round(summary_models(config.model_shape(), kind))
  # The sums, and the summary that is made of them in one more pass; Gram
  # matrices need no gradients.
  num_passes = 1 / 3 if kind.summary == 'gram' else 1
  return ClientCost(2 * max(1, num_models), passes_after_training=num_passes)


_EXPECTED = (
  # The solve sets the weights.
  *UNIT_STEP,
  ('client_work.keeps_optimizer_state', False),
  ('client_work.max_delta_norm', None),
  # Summaries read the data, without noise.
  ('local_privacy.clip_norm', 0.0),
)


def _problems(config):
  because = f'with algorithm.name {config.algorithm.name!r}'
  return settings_unlike(config, _EXPECTED, because)
