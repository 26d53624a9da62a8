"""Shared parts of the declarations of one-shot methods.

Clients train once and upload their weights with a summary of their data; the
server solves for a model over all uploads, see `one_shot/solving.py`. More than
one round is few-shot learning: the solution is the next round's start.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

from tff_fedfish.config_fields import number, setting
from tff_fedfish.methods.method import (
  ClientCost,
  Method,
  Traffic,
)
from tff_fedfish.methods.one_shot import upload_sizes
from tff_fedfish.methods.one_shot.upload_sizes import Upload
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
  summary_of: Callable[[Any], str],
  problems: Callable[[Any], list[str]] = lambda config: [],
  **fields: Any,
) -> Method:
  """Returns the declaration of a one-shot method.

  Args:
    summary_of: `Upload.summary` with a config.
    problems: `Method.problems` beyond those of every one-shot method.
    **fields: Fields of `Method`.
  """

  def upload(config):
    return Upload(summary_of(config), config.algorithm.compression)

  def traffic(config):
    return Traffic(
      upload_sizes.uploaded_models(config.model_shape(), upload(config)), 1
    )

  return Method(
    builder='tff_fedfish.methods.one_shot.process:build_one_shot',
    arguments=lambda config: {
      'shape': config.model_shape(),
      **upload(config)._asdict(),
    },
    upload=upload,
    traffic=traffic,
    cost=functools.partial(_cost, upload),
    problems=lambda config: [*_problems(config), *problems(config)],
    example='fashion_mnist_one_shot',
    sends='weights and summaries of data, one client at a time',
    **fields,
  )


def _cost(upload, config):
  found = upload(config)
  num_models = upload_sizes.summary_models(config.model_shape(), found)
  if found.summary in ('none', 'class_counts'):
    return ClientCost()
  passes = {'gram': 'none', 'diagonal': 'rows', 'kfac': 'batches'}
  if config.data.holds_images:
    passes['diagonal'] = 'batches'
  # The sums, and the summary that is made of them.
  return ClientCost(
    pass_after_training=passes[found.summary],
    models_after_training=2 * max(1, round(num_models)),
  )


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


def image_problems(config: Any) -> list[str]:
  """Returns the clause that a method of images only has on text."""
  if config.data.holds_images:
    return []
  return [
    f'`config.algorithm.name` {config.algorithm.name!r} requires a corpus of '
    'images, found text'
  ]
