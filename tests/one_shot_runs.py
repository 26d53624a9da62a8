"""Settings of one-shot runs on a few images, and what such a run leaves."""

import csv
import pathlib

import numpy as np

from tff_fedfish.run import checkpoints, model_state, run_directory
from tff_fedfish.run.uploads import StoredUploads

SETTINGS = dict(
  cohorts__cohort_size=None,
  model__preset='lenet',
  server__optimizer='sgd',
  server__learning_rate=1.0,
  training__num_rounds=1,
)
"""Overrides, as `small_image_runs.train` takes them."""


def rows(run: pathlib.Path) -> list[dict[str, str]]:
  """Returns the rows of metrics.csv."""
  with open(run / 'metrics.csv', newline='') as file:
    return list(csv.DictReader(file))


def weights(run: pathlib.Path) -> list[np.ndarray]:
  """Returns the weights of a run's, or a checkpoint's, checkpoint."""
  found = checkpoints.load_checkpoint(
    checkpoints.resolve_checkpoint(run), model_state.TRAINABLE_PREFIX
  )
  prefix = model_state.TRAINABLE_PREFIX
  return [found.tensors[f'{prefix}{i}'] for i in range(len(found.tensors))]


def uploads(run: pathlib.Path) -> StoredUploads:
  """Returns the uploads that a run kept of its first round."""
  config = run_directory.read_config(run)
  return StoredUploads(
    run / 'uploads',
    1,
    config.model_shape(),
    config.method.upload(config),
  )
