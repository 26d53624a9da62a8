"""Features of a run: written once by all clients, then what they train on."""

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.methods.method import load
from tff_fedfish.planning import disk
from tff_fedfish.printing import format_bytes
from tff_fedfish.progress import stage
from tff_fedfish.run import (
  checkpoints,
  client_state_files,
  feature_files,
  learning_setup,
  round_metrics,
)
from tff_fedfish.run.client_state_files import RoundStates
from tff_fedfish.run.cohort_data import TrainingClient
from tff_fedfish.run.feature_files import FeatureClient
from tff_fedfish.runtime.round_options import RoundInterrupted
from tff_fedfish.training.round_callbacks import (
  BuiltRun,
  FinishedRound,
  RoundCallback,
)


class FeatureStore(RoundCallback):
  """Computes the clients' features, and feeds clients with them.

  A client's features are in memory one client at a time while they are
  computed, and by batches afterwards. They count from their rename on; a run
  that is resumed before their round computes them again. In phases without
  features this does nothing.
  """

  def __init__(self, run: BuiltRun):
    """Removes what an unfinished round left.

    Raises:
      OSError: If it cannot be removed.
    """
    self._run, self._features = run, run.config.method.features
    # Neither in this phase, or in none of the run.
    use = 'unused' if self._features is None else self._features.use
    self._is_idle, self._is_written = use == 'unused', use == 'written'
    self._is_synced = False
    self._round = feature_files.written_round(run.config)
    if self._is_idle:
      return
    self._path = feature_files.directory(run.workdir, self._round)
    self._bases = feature_files.directory(
      run.workdir, self._round, feature_files.BASES_NAME
    )
    for path in (self._path, self._bases):
      if run.position.round_num < self._round and path.exists():
        shutil.rmtree(path)
      checkpoints.remove_leftovers(path.parent)

  def prepare(self, should_stop: Callable[[], bool]) -> None:
    """Checks that there is room, and computes what follows from features.

    Asks before each client whether to stop.

    Raises:
      FailedError: If features and bases do not fit on the disk.
      OSError: If something cannot be written.
      RoundInterrupted: If the run is to stop.
    """
    if self._is_idle:
      return
    if self._is_written:
      self._require_room()
    elif self._features.work and not self._has_bases():
      shutil.rmtree(self._bases, ignore_errors=True)
      with stage('computing the bases of the clients'):
        self._write_bases(should_stop)

  def _has_bases(self):
    """Says whether the bases are there, each as it was written."""
    try:
      for name, entry in feature_files.entries(self._bases).items():
        client_state_files.require_as_written(
          bytes.fromhex(name), self._bases / entry.file, entry
        )
    except UserError:
      return False
    return True

  def clients(
    self,
    round_num: int,
    state: Any,
    clients: Sequence[TrainingClient],
    should_stop: Callable[[], bool],
  ) -> Sequence[TrainingClient | FeatureClient]:
    """Returns the clients of a round as they are fed.

    They compute features from the server's state before the round; whether to
    stop is asked before each of them.

    Raises:
      FailedError: If features are not finite in float16.
      OSError: If features cannot be written or read.
      RoundInterrupted: If the run is to stop.
    """
    if self._is_idle:
      return clients
    if round_num == self._round:
      self._write_features(state, clients, should_stop)
    files = feature_files.entries(self._path)
    bases = {}
    if self._bases.exists():
      bases = feature_files.entries(self._bases)
    takes_basis = self._features.work is not None
    fed = []
    for client in clients:
      entry, basis = (f.get(client.client_id.hex()) for f in (files, bases))
      fed.append(
        FeatureClient(
          client_id=client.client_id,
          path=os.fspath(self._path / entry.file),
          takes_basis=takes_basis and round_num != self._round,
          basis=basis and os.fspath(self._bases / basis.file),
          kept=client.kept,
        )
      )
    return fed

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    if self._is_written and done.round_num == self._round:
      name = round_metrics.feature_bytes_name(self._run.config)
      files = feature_files.entries(self._path).values()
      done.metrics[name] = sum(file.num_bytes for file in files)

  def checkpoint_contents(self) -> dict[str, str]:
    """Returns what a checkpoint keeps, once the features are on disk.

    Raises:
      OSError: If they cannot be flushed.
    """
    if self._is_idle or not self._path.exists():
      return {}
    if not self._is_synced:
      feature_files.sync(self._path)
      self._is_synced = True
    files = feature_files.entries(self._path)
    return {'features': feature_files.digest(files)}

  def _feature_work(self, weights):
    """Returns the function of `Features.work`."""
    config = self._run.config
    model = learning_setup.build_model(config)
    return load(self._features.work)(config, model, weights)

  def _require_room(self):
    run = self._run
    num_bytes = disk.feature_bytes(
      run.config, run.client_rows, run.participating
    )
    free = shutil.disk_usage(run.workdir).free
    if num_bytes > free:
      raise FailedError(
        f'The features of {len(run.participating)} clients take '
        f'{format_bytes(num_bytes)}, but {format_bytes(free)} are free '
        f'in {str(run.workdir)!r}. Free disk space; the same command continues '
        f'after round {run.position.round_num}. Or start a new run with a '
        'smaller `--config.algorithm.num_features`.'
      )

  def _write_features(self, state, clients, should_stop):
    run = self._run
    weights = run.process.get_model_weights(state)
    compute = self._feature_work(weights)
    self._path.parent.mkdir(exist_ok=True)
    with RoundStates(self._path) as writer:
      for index, client in enumerate(clients):
        if should_stop():
          raise RoundInterrupted
        features = self._features_of(client, compute)
        writer.add(index, client.client_id, features)
        # So that no two clients' features are in memory.
        writer.wait()
      writer.commit()

  def _features_of(self, client, compute):
    # All rows, each once, in the order of the round.
    rows = dataclasses.replace(
      client, stream_length=None, batches='ragged'
    ).sequences()
    num_features = self._features.sizes(self._run.config).num_features
    found = np.empty((len(rows), num_features), np.float16)
    labels = rows.batch_features()['y']
    for start in range(0, len(rows), feature_files.BATCH_ROWS):
      part = slice(start, start + feature_files.BATCH_ROWS)
      with np.errstate(over='ignore'):
        found[part] = compute(rows.select(part).batch_features())
      if not np.isfinite(found[part]).all():
        raise FailedError(
          f'The features of client {client_id_to_text(client.client_id)!r} '
          'must be finite in float16, but are not. Train the rounds before '
          'with a smaller `--config.client_work.learning_rate`.'
        )
    return {'features': found, 'labels': np.asarray(labels, np.int32)}

  def _write_bases(self, should_stop):
    """Writes the basis of every client that has one, in order of their files.

    They follow from the features, so a run that is killed here computes them
    again.
    """
    run = self._run
    max_rows = self._features.sizes(run.config).max_gram_rows
    weights = run.process.get_model_weights(run.position.state)
    compute = self._feature_work(weights)
    self._bases.parent.mkdir(exist_ok=True)
    entries = feature_files.entries(self._path).items()
    with RoundStates(self._bases) as writer:
      for index, (name, entry) in enumerate(entries):
        if should_stop():
          raise RoundInterrupted
        features = feature_files.read_features(self._path / entry.file)
        if 0 < len(features) <= max_rows:
          writer.add(index, bytes.fromhex(name), compute(features))
          writer.wait()
      writer.commit()
    if self._bases.exists():
      feature_files.sync(self._bases)
