"""Trains the clients of one cohort and keeps what they would send on disk."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.model_shapes import num_parameters
from tff_fedfish import files
from tff_fedfish.config.schema import SeedsConfig, TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.laboratory.cohort_means import Tensors
from tff_fedfish.run import learning_setup, round_metrics
from tff_fedfish.run.cohort_data import TrainingClient


class Trainer:
  """Trains clients as far as some stops, with a process for each stop."""

  def __init__(self, config: TrainConfig, local_epochs: Sequence[int]):
    """Builds the processes.

    Args:
      config: A method whose clients send a `DeltaAndFisher`.
      local_epochs: Stops, ascending. From each the clients train on to the
        next; their optimizer's state and noise start again there.

    Raises:
      UserError: If the clients send anything else.
    """
    if config.kept_slots:
      names = ', '.join(slot.name for slot in config.kept_slots)
      raise UserError(
        'A laboratory trains clients once, so its method must keep nothing '
        f'between rounds, but those of {config.algorithm.name!r} as it is set '
        f'keep {names}. Choose other settings.'
      )
    self._key = _key(config)
    self._processes = []
    before = 0
    for stop in local_epochs:
      of_stop = config.with_values(
        'client_work', num_local_epochs=stop - before
      )
      process = learning_setup.build_learning_process(of_stop)
      learning_setup.require_declared_process(
        of_stop, process, with_trained_models=True
      )
      self._processes.append((stop, process))
      before = stop
    sent = process.trained_models.type_signature.result.member.update
    if not hasattr(sent, 'fisher_diagonal'):
      raise UserError(
        '`config.algorithm` must be a method whose clients send a Fisher '
        f'diagonal, but those of {config.algorithm.name!r} send none as it is '
        'set. Choose another method, or leave fisher_power and '
        'plain_mean_fraction at their defaults.'
      )

  def fits(self, config: TrainConfig) -> bool:
    """Says whether the processes are those of a config.

    Seeds and the client's learning rate may differ.
    """
    return self._key == _key(config)

  def train(
    self, config: TrainConfig, weights: Tensors, client: TrainingClient
  ) -> dict[int, dict[str, Any]]:
    """Trains one client from the server's weights, with a point's config.

    Returns:
      By local epochs `weight`, `num_batches`, `delta` and `diagonal`; the
      weight is 0 where the client has no data or its update is not finite.
    """
    num_rows = len(client.sequences())
    rate = round_metrics.rate_of_round(config.client_work, client.round_num)
    found, local = {}, weights
    for stop, process in self._processes:
      state = _with_weights(process, local)
      hparams = process.get_hparams(state)
      hparams['client_work']['learning_rate'] = tf.constant(rate, tf.float32)
      state = process.set_hparams(state, hparams)
      (trained,) = process.trained_models(state, [client])
      local = tuple(map(np.asarray, trained['trainable']))
      found[stop] = {
        'weight': float(trained['client_weight']),
        'num_batches': -(-num_rows // client.batch_size),
        'delta': tuple(a - b for a, b in zip(weights, local, strict=True)),
        'diagonal': tuple(map(np.asarray, trained['update'].fisher_diagonal)),
      }
    return found


class StoredClient:
  """A `TrainedClient` whose tensors lie in a file."""

  def __init__(self, path: pathlib.Path):
    """Reads the numbers; the tensors are read when they are asked for."""
    self._path = path
    with np.load(path) as stored:
      self.weight = float(stored['weight'])
      self.num_batches = int(stored['num_batches'])

  @property
  def delta(self) -> Tensors:
    """See `TrainedClient`."""
    return self._read('delta')

  @property
  def diagonal(self) -> Tensors:
    """See `TrainedClient`."""
    return self._read('diagonal')

  def _read(self, name):
    with np.load(self._path) as stored:
      count = sum(key.startswith(f'{name}/') for key in stored.files)
      return tuple(stored[f'{name}/{i}'] for i in range(count))


def stored_path(
  directory: pathlib.Path, position: int, local_epochs: int
) -> pathlib.Path:
  """Returns the file of a client of the cohort, counted from 0."""
  return directory / f'client_{position:04d}-E{local_epochs}.npz'


def store(path: pathlib.Path, trained: dict[str, Any]) -> None:
  """Writes what `Trainer.train` returns of one stop."""
  arrays = {name: trained[name] for name in ('weight', 'num_batches')}
  for name in ('delta', 'diagonal'):
    arrays |= {f'{name}/{i}': t for i, t in enumerate(trained[name])}
  with files.write_atomically(path, 'wb') as file:
    np.savez(file, **arrays)


def cohort_bytes(config: TrainConfig, num_clients: int, num_stops: int) -> int:
  """Returns the bytes of the files of one cohort: two models for each stop."""
  return num_clients * num_stops * 2 * 4 * num_parameters(config.model_shape())


def initial_weights(config: TrainConfig) -> Tensors:
  """Returns the weights that a run of the config starts from."""
  trainable, _ = learning_setup.build_model(config).draw_initial_weights()
  return tuple(map(np.asarray, trainable))


def _with_weights(process, weights):
  """Returns the process's initial state with other weights of the model."""
  state_type = process.initialize.type_signature.result
  tensors = learning_setup.to_tensors(process.initialize(), state_type)
  for i, tensor in enumerate(weights):
    tensors[f'{learning_setup.TRAINABLE_PREFIX}{i}'] = tensor
  return learning_setup.from_tensors(tensors, state_type, 'the model')


def _key(config):
  config = dataclasses.replace(config, seeds=SeedsConfig())
  return config.with_values(
    'client_work', learning_rate=1.0, num_local_epochs=1
  )
