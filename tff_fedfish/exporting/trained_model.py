"""Reads the model of a checkpoint, with its vocabulary."""

import dataclasses
import os
import pathlib

import numpy as np

from models.model_shapes import ModelShape
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.run import (
  checkpoints,
  run_directory,
  run_inputs,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
  """The global model after some rounds of a run."""

  config: TrainConfig
  """The run's config, in the phase of the checkpoint."""
  shape: ModelShape
  """The model's shape: of a transformer, or of an image model."""
  weights: dict[str, np.ndarray]
  """Float32, by the names and in the order of `weight_shapes`; of a phase that
  holds another model than the config's, of `Method.weight_shapes`, those that
  are trained first."""
  tokenizer: Tokenizer | None
  """Tokenizer of the run's vocabulary; None for an image model."""
  round_num: int
  """Number of rounds that the model was trained for."""
  run: pathlib.Path
  """The run's directory."""
  corpus_fingerprint: str | None
  """Fingerprint of the training corpus; see `run_inputs`."""

  @property
  def is_of_images(self) -> bool:
    """Whether this is an image model, not a language model."""
    return self.config.data.holds_images


def load_trained_model(
  checkpoint: str | os.PathLike, *, language_only: bool = False
) -> TrainedModel:
  """Reads the weights of a checkpoint; builds neither model nor process.

  Args:
    checkpoint: A checkpoint or a run directory (its last).
    language_only: Whether to refuse image models.

  Raises:
    UserError: If it is no checkpoint, is damaged, does not fit the config or
      the vocabulary of its run, or is refused by `language_only`.
  """
  path = checkpoints.resolve_checkpoint(checkpoint)
  run = path.parent.parent
  config = run_directory.read_config(run)
  if language_only and config.data.holds_images:
    raise UserError(
      f'`--checkpoint` must be of a language model, but {str(run)!r} trained '
      f'{config.model.preset!r} on images. Name the run of a language model.'
    )
  found, tokenizer = run_inputs.open_checkpoint(config, path)
  config = config.in_round(found.round_num)
  if config.method.model is not None and not config.data.holds_images:
    raise UserError(
      f'`--checkpoint` must hold a network, but {str(path)!r} holds one that '
      f'phase {config.phase.name!r} of {config.algorithm.name!r} made linear '
      'in its weights. Name a checkpoint of an earlier phase.'
    )
  # Late: the errors above must not wait for TFF.
  from tff_fedfish.run import learning_setup

  loaded = checkpoints.load_checkpoint(
    path, learning_setup.WEIGHTS_PREFIX, verify=False
  )
  shape = run_directory.model_shape(config, found)
  shapes = learning_setup.server_shapes(config, found)
  weights = learning_setup.model_weights(loaded.tensors, shapes, path)
  names = (*shapes.trainable, *shapes.non_trainable)
  return TrainedModel(
    config=config,
    shape=shape,
    weights=dict(
      zip(names, weights.trainable + weights.non_trainable, strict=True)
    ),
    tokenizer=tokenizer,
    round_num=loaded.round_num,
    run=run,
    corpus_fingerprint=found.contents.get('corpus_fingerprint'),
  )
