"""Solves over uploads that are drawn, not trained."""

import pathlib
from collections.abc import Mapping

import numpy as np
import planned_configs

from models.model_shapes import weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.methods.one_shot.uploads import (
  SolveContext,
  SolveResult,
  Uploads,
  is_factor,
  summary_shapes,
)
from tff_fedfish.run.store import RoundStore
from tff_fedfish.run.uploads import StoredUploads


def write_uploads(config: TrainConfig, directory: pathlib.Path) -> None:
  """Draws the uploads of a cohort; factors are positive semidefinite."""
  shape, upload = config.model_shape(), config.method.upload(config)
  random = np.random.default_rng(1)
  writer = RoundStore(directory).begin(1)
  for client in range(config.cohort_size):
    tensors = {'client_weight/0': np.float32(client + 1)}
    for i, size in enumerate(weight_shapes(shape).values()):
      weight = 0.05 * random.standard_normal(size, np.float32)
      tensors[f'weights/{i}'] = weight
    summary = summary_shapes(shape, upload)
    for i, (name, size) in enumerate(summary.items()):
      tensor = random.random(size, np.float32)
      if is_factor(name):
        tensor = tensor @ tensor.T / size[0]
      tensors[f'summary/{i}'] = tensor
    writer.add_client(client, b'%03d' % client, tensors)
  writer.commit()


def open_uploads(
  name: str, directory: str, settings: Mapping[str, str]
) -> tuple[TrainConfig, Uploads]:
  """Returns a shipped config with settings, and its uploads."""
  config = planned_configs.shipped(name, **settings)
  return config, StoredUploads(
    directory,
    1,
    config.model_shape(),
    config.method.upload(config),
  )


def solve(config: TrainConfig, uploads: Uploads) -> SolveResult:
  """Returns the solution; all weights score alike."""
  context = SolveContext(
    shape=config.model_shape(),
    score=lambda weights: 0.5,
    seed=3,
  )
  return config.method.solve(uploads, uploads.mean(), context)
