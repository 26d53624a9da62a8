"""Features of a run: written once by all clients, then what they train on."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.planning import disk
from tff_fedfish.progress import stage
from tff_fedfish.run import build, columns, features, store
from tff_fedfish.run.cohorts import TrainingClient
from tff_fedfish.run.features import BATCH_ROWS, FeatureClient
from tff_fedfish.run.store import RoundStore
from tff_fedfish.runtime.round_options import RoundInterrupted
from tff_fedfish.training.parts import BuiltRun, FinishedRound


class FeaturesPart:
  """Computes the clients' features, and feeds clients with them.

  A client's features are in memory one client at a time while they are
  computed, and by batches afterwards. They count from their rename on; a run
  that is resumed before their round computes them again. An OSError says what
  cannot be written or removed.
  """

  def __init__(self, run: BuiltRun):
    """Removes what an unfinished round left."""
    self._run, self._settings = run, run.config.method.features
    self._is_written = self._settings.use == 'written'
    self._is_synced = False
    self._round = features.written_round(run.config)
    self._features = RoundStore(run.workdir / store.FEATURES)
    self._bases = RoundStore(run.workdir / store.FEATURE_BASES)
    for found in (self._features, self._bases):
      is_before = run.position.round_num < self._round
      found.discard_after(-1 if is_before else self._round)

  def prepare(self, should_stop: Callable[[], bool]) -> None:
    """Checks that there is room, and computes what follows from features.

    Asks before each client whether to stop.

    Raises:
      FailedError: If features and bases do not fit on the disk.
      RoundInterrupted: If the run is to stop.
    """
    if self._is_written:
      run = self._run
      num_bytes = disk.feature_bytes(
        run.config, run.client_rows, run.participating
      )
      store.require_room(run.workdir, num_bytes, 'features', self._round)
    elif self._settings.work and not self._has_bases():
      with stage('computing the bases of the clients'):
        self._write_bases(should_stop)

  def feed(
    self,
    round_num: int,
    state: Any,
    clients: Sequence[TrainingClient],
    should_stop: Callable[[], bool],
  ) -> Sequence[FeatureClient]:
    """Returns the clients of a round, fed with their features.

    They compute features from the server's state before the round; whether to
    stop is asked before each of them.

    Raises:
      FailedError: If features are not finite in float16.
      RoundInterrupted: If the run is to stop.
    """
    if round_num == self._round:
      self._write_features(state, clients, should_stop)
    files = self._features.manifest(self._round).files
    bases = {}
    if self._bases.rounds():
      bases = self._bases.manifest(self._round).files
    takes_basis = self._settings.work is not None
    fed = []
    for client in clients:
      entry, basis = (f.get(client.client_id.hex()) for f in (files, bases))
      fed.append(
        FeatureClient(
          client_id=client.client_id,
          path=os.fspath(self._features.path(self._round) / entry.file),
          takes_basis=takes_basis and round_num != self._round,
          basis=basis and os.fspath(self._bases.path(self._round) / basis.file),
          kept=client.kept,
        )
      )
    return fed

  def measure(self, done: FinishedRound) -> None:
    """Adds the size of the features to the round in which they are written."""
    if self._is_written and done.round_num == self._round:
      name = columns.feature_bytes_name(self._run.config)
      files = self._features.manifest(self._round).files.values()
      done.metrics[name] = sum(file.num_bytes for file in files)

  def checkpoint_contents(self, round_num: int) -> dict[str, str]:
    """Returns what a checkpoint keeps, once the features are on disk."""
    if not self._features.rounds():
      return {}
    if not self._is_synced:
      self._features.sync(self._round)
      self._is_synced = True
    files = self._features.manifest(self._round).files
    return {'features': features.digest(files)}

  def _has_bases(self):
    """Says whether the bases are there, each as it was written."""
    try:
      return list(self._bases.verify(self._round)) is not None
    except UserError:
      return False

  def _feature_work(self, weights):
    """Returns the function of `Features.work`."""
    config = self._run.config
    model = build.build_model(config)
    return self._settings.work(config, model, weights)

  def _write_features(self, state, clients, should_stop):
    weights = self._run.process.get_model_weights(state)
    compute = self._feature_work(weights)
    with self._features.begin(self._round) as writer:
      for index, client in enumerate(clients):
        if should_stop():
          raise RoundInterrupted
        writer.add_client(
          index, client.client_id, self._features_of(client, compute)
        )
        # So that no two clients' features are in memory.
        writer.wait()
      writer.commit()

  def _features_of(self, client, compute):
    # All rows, each once, in the order of the round.
    rows = dataclasses.replace(
      client, stream_length=None, batches='ragged'
    ).sequences()
    num_features = self._settings.sizes(self._run.config).num_features
    values = np.empty((len(rows), num_features), np.float16)
    labels = rows.batch_features()['y']
    for start in range(0, len(rows), BATCH_ROWS):
      part = slice(start, start + BATCH_ROWS)
      with np.errstate(over='ignore'):
        values[part] = compute(rows.select(part).batch_features())
      if not np.isfinite(values[part]).all():
        raise FailedError(
          f'The features of client {client_id_to_text(client.client_id)!r} '
          'must be finite in float16, but are not. Train the rounds before '
          'with a smaller `--config.client_work.learning_rate`.'
        )
    return {'features': values, 'labels': np.asarray(labels, np.int32)}

  def _write_bases(self, should_stop):
    """Writes the basis of every client that has one, in order of their files.

    They follow from the features, so a run that is killed here computes them
    again.
    """
    run = self._run
    max_rows = self._settings.sizes(run.config).max_gram_rows
    weights = run.process.get_model_weights(run.position.state)
    compute = self._feature_work(weights)
    files = store.by_client(self._features.manifest(self._round).files)
    path = self._features.path(self._round)
    with self._bases.begin(self._round, syncs=True) as writer:
      for index, (client_id, entry) in enumerate(files.items()):
        if should_stop():
          raise RoundInterrupted
        rows = features.read_features(path / entry.file)
        if 0 < len(rows) <= max_rows:
          writer.add_client(index, client_id, compute(rows))
          writer.wait()
      writer.commit()
