"""Reads the model of a checkpoint, with its vocabulary."""

import dataclasses
import os
import pathlib

import numpy as np

from models.model_shapes import ModelShape, weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.run import (
  checkpoints,
  client_data,
  client_state,
  divergence,
  run_directory,
)
from tff_fedfish.run.row_source import row_source


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
  """The global model after some rounds of a run, or that of one client."""

  config: TrainConfig
  """The run's config, in the phase of the checkpoint."""
  shape: ModelShape
  """The model's shape: of a transformer, or of an image model."""
  weights: dict[str, np.ndarray]
  """Float32, by the names and in the order of `weight_shapes`."""
  tokenizer: Tokenizer | None
  """Tokenizer of the run's vocabulary; None for an image model."""
  round_num: int
  """Number of rounds that the model was trained for."""
  run: pathlib.Path
  """The run's directory."""
  corpus_fingerprint: str | None
  """Fingerprint of the training corpus; see `client_data`."""
  client: str | None = None
  """Id, as text, of the client whose own model it is; None: the global one."""

  @property
  def is_of_images(self) -> bool:
    """Whether this is an image model, not a language model."""
    return self.config.data.holds_images


def load_trained_model(
  checkpoint: str | os.PathLike,
  *,
  client: str | None = None,
  language_only: bool = False,
) -> TrainedModel:
  """Reads the weights of a checkpoint; does not train.

  Args:
    checkpoint: A checkpoint or a run directory (its last).
    client: Id, as text, of the client whose model to read, of a method with
      models of clients' own: the one with which it would begin the next round.
    language_only: Whether to refuse image models.

  Raises:
    UserError: If it is no checkpoint, is damaged, does not fit the config or
      the vocabulary of its run, is refused by `language_only`, or there is no
      such client or none is named where one is required.
  """
  path = divergence.resolve_checkpoint(checkpoint)
  run = path.parent.parent
  config = run_directory.read_config(run)
  if language_only and config.data.holds_images:
    raise UserError(
      f'`--checkpoint` must be of a language model, but {str(run)!r} trained '
      f'{config.model.preset!r} on images. Name the run of a language model.'
    )
  _require_client(config, client)
  found, tokenizer = client_data.open_checkpoint(config, path)
  config = config.in_round(found.round_num)
  if config.method.model is not None:
    raise UserError(
      f'`--checkpoint` must hold a network, but {str(path)!r} holds one that '
      f'phase {config.phase.name!r} of {config.algorithm.name!r} made linear '
      'in its weights. Name a checkpoint of an earlier phase.'
    )
  shape = run_directory.model_shape(config, found)
  if client is None:
    weights = _server_weights(config, found)
  else:
    weights = _weights_of_client(config, found, tokenizer, client)
  return TrainedModel(
    config=config,
    shape=shape,
    weights=weights,
    tokenizer=tokenizer,
    round_num=found.round_num,
    run=run,
    corpus_fingerprint=found.contents.get('corpus_fingerprint'),
    client=client,
  )


def _server_weights(config, found):
  """Returns the weights of the server's model, by name."""
  # Late: errors must not wait for TFF.
  from tff_fedfish.run import model_state

  loaded = checkpoints.load_checkpoint(
    found.path, model_state.WEIGHTS_PREFIX, verify=False
  )
  shapes = model_state.server_shapes(config, found)
  weights = model_state.model_weights(loaded.tensors, shapes, found.path)
  names = (*shapes.trainable, *shapes.non_trainable)
  arrays = weights.trainable + weights.non_trainable
  return dict(zip(names, arrays, strict=True))


def _require_client(config, client):
  """Raises UserError unless a client is named where models are of clients."""
  name, is_personal = config.algorithm.name, config.method.personal(config)
  if is_personal and client is None:
    raise UserError(
      f'`--client_id` is required with algorithm.name {name!r}, whose clients '
      'have models of their own. Name one of those that per_client.csv of '
      '`fedfish evaluate` lists.'
    )
  if not is_personal and client is not None:
    raise UserError(
      f'`--client_id` is {client!r}, but clients of algorithm.name {name!r} '
      'share the global model. Leave it out.'
    )


def _weights_of_client(config, found, tokenizer, client):
  """Returns the weights of a client's own model, by name."""
  states = client_state.states_of_checkpoint(found)
  directory = config.data.directory
  corpus = client_data.open_corpus(config, directory)
  if corpus.fingerprint != found.contents.get('corpus_fingerprint'):
    raise UserError(
      'The corpus of the run is required for the model of a client, but '
      f'{directory!r} holds another one. Restore it.'
    )
  split = row_source(config).split(corpus)
  participating = row_source(config).training_clients(split)
  try:
    client_id = text_to_client_id(client)
  except ValueError:
    client_id = None
  if client_id not in participating:
    raise UserError(
      f'`--client_id` must be one of the {len(participating)} clients that the '
      f'run trained, found {client!r}. Name one of those that per_client.csv '
      'of `fedfish evaluate` lists.'
    )
  # Late: the errors above must not wait for TFF.
  from tff_fedfish.evaluation.own_tests import open_own_tests

  models = open_own_tests(config, corpus, tokenizer, found, states)
  weights = map(np.asarray, models.weights_of(client_id))
  return dict(zip(weight_shapes(config.model_shape()), weights, strict=True))
