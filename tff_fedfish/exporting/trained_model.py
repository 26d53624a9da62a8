"""Reads the model of a checkpoint, with its vocabulary."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from models.model_shapes import ModelShape, weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.run import (
  best_round,
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
  weights: dict[str, np.ndarray]
  """Float32, by the names and in the order of `weight_shapes`."""
  tokenizer: Tokenizer | None
  """Tokenizer of the run's vocabulary; None for an image model."""
  round_num: int
  """Rounds that the model was trained for."""
  run: pathlib.Path
  choice: Mapping[str, Any]
  """Facts of the choice that 'RUN@best' is; see `best_round.choice`."""
  client: str | None = None
  """Id, as text, of the client with this personal model. None: the global
  model."""

  @property
  def is_of_images(self) -> bool:
    """Whether this is an image model, not a language model."""
    return self.config.data.holds_images


@checkpoints.again_if_removed
def load_trained_model(
  checkpoint: str | os.PathLike,
  *,
  client: str | None = None,
  language_only: bool = False,
) -> TrainedModel:
  """Reads the weights of a checkpoint, a run (its last) or 'RUN@best'.

  Args:
    checkpoint: Its path.
    client: Id, as text, of the client whose personal model to read: the one
      with which it would begin the next round. Only for methods with personal
      models, which require it.
    language_only: Whether to refuse image models.

  Raises:
    UserError: If there is no such checkpoint or client, or the checkpoint is
      damaged, does not fit its run, or is of another kind of model.
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
  opened, tokenizer = client_data.open_checkpoint(config, path)
  config = config.in_round(opened.round_num)
  if config.method.held_model is not None:
    raise UserError(
      f'`--checkpoint` must hold a network, but {str(path)!r} holds one that '
      f'phase {config.phase.name!r} of {config.algorithm.name!r} made linear '
      'in its weights. Name a checkpoint of an earlier phase.'
    )
  if client is None:
    weights = _server_weights(config, opened)
  else:
    weights = _weights_of_client(config, opened, tokenizer, client)
  return TrainedModel(
    config=config,
    shape=run_directory.model_shape(config, opened),
    weights=weights,
    tokenizer=tokenizer,
    round_num=opened.round_num,
    run=run,
    choice=best_round.choice(checkpoint),
    client=client,
  )


def find_client(
  client_ids: Collection[bytes], text: str, option: str, where: str
) -> bytes:
  """Returns a client's id, given as per_client.csv writes it.

  Raises:
    UserError: If it is none of `client_ids`; the words `where` say whose they
      are.
  """
  client_id = None
  with contextlib.suppress(ValueError):
    client_id = text_to_client_id(text)
  if client_id not in client_ids:
    raise UserError(
      f'`{option}` must be one of the {len(client_ids):,} clients {where}, '
      f'found {text!r}. Copy an id, with its %XX for bytes that are not text, '
      'from `fedfish inspect` or per_client.csv.'
    )
  return client_id


def _require_client(config, client):
  """Raises UserError unless exactly personal models are asked for by client."""
  name, is_personal = config.algorithm.name, config.method.personal(config)
  if is_personal and client is None:
    raise UserError(
      f'`--client_id` is required with algorithm.name {name!r}, whose clients '
      'have personal models. Name a client of per_client.csv of `fedfish '
      'evaluate`.'
    )
  if not is_personal and client is not None:
    raise UserError(
      f'`--client_id` is {client!r}, but clients of algorithm.name {name!r} '
      'share the global model. Leave it out.'
    )


def _server_weights(config, opened):
  """Returns the weights of the server's model, by name."""
  # Late: errors must not wait for TFF.
  from tff_fedfish.run import model_state

  shapes = model_state.server_shapes(config, opened)
  weights = model_state.model_weights(config, opened)
  names = (*shapes.trainable, *shapes.non_trainable)
  arrays = weights.trainable + weights.non_trainable
  return dict(zip(names, arrays, strict=True))


def _weights_of_client(config, opened, tokenizer, client):
  """Returns the weights of a client's personal model, by name."""
  states = client_state.states_of_checkpoint(opened)
  directory = config.data.directory
  corpus = client_data.open_corpus(config, directory)
  if corpus.fingerprint != opened.contents.get('corpus_fingerprint'):
    raise UserError(
      "A client's personal model needs the corpus of the run, but "
      f'{directory!r} holds another one. Restore it.'
    )
  rows = row_source(config)
  participating = rows.training_clients(rows.split(corpus))
  where = 'that the run trained'
  client_id = find_client(participating, client, '--client_id', where)
  # Late: the errors above must not wait for TFF.
  from tff_fedfish.evaluation.own_tests import open_own_tests

  models = open_own_tests(config, corpus, tokenizer, opened, states)
  weights = map(np.asarray, models.weights_of(client_id))
  return dict(zip(weight_shapes(config.model_shape()), weights, strict=True))
