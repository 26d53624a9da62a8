"""The server's part of a one-shot round: uploads, solve, new weights."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from models.model_shapes import weight_shapes
from tff_fedfish.data import randomness
from tff_fedfish.methods.one_shot.uploads import SolveContext
from tff_fedfish.run import client_inputs, columns, store
from tff_fedfish.run.cohorts import TrainingClient
from tff_fedfish.run.store import RoundStore, RoundWriter
from tff_fedfish.run.uploads import StoredUploads
from tff_fedfish.training import server_validation
from tff_fedfish.training.parts import BuiltRun, FinishedRound


class SolvePart:
  """Streams a round's uploads to RUN/uploads, and solves for the new weights.

  Uploads of a round count from their rename on. A run that is resumed computes
  the rounds after its checkpoint again, uploads included. An OSError says what
  cannot be written, read or removed.
  """

  def __init__(self, run: BuiltRun):
    """Removes what an unfinished round left."""
    self._run = run
    self._uploads = RoundStore(run.workdir / store.UPLOADS)
    self._writer: RoundWriter | None = None
    self._score = None
    keeps = run.config.algorithm.keeps_uploads and run.is_resumed
    self._uploads.discard_after(run.position.round_num if keeps else -1)

  def on_output(
    self,
    round_num: int,
    clients: Sequence[TrainingClient],
    stack: contextlib.ExitStack,
  ) -> Callable[[int, Any], None]:
    """Starts to write a round; see `ClientStatesPart.on_output`."""
    keeps = self._run.config.algorithm.keeps_uploads
    self._writer = stack.enter_context(
      self._uploads.begin(round_num, syncs=keeps)
    )
    return client_inputs.output_writer(
      self._writer, [client.client_id for client in clients]
    )

  def finish(self, done: FinishedRound) -> FinishedRound:
    """Returns a round, its clients trained, with the solution as its weights.

    Without an upload they stay as they are. Where the solution is not finite
    they are those before the round, and the metrics say so.
    """
    begin = time.monotonic()
    if not self._writer.commit():
      none = {columns.ONE_SHOT_NAMES[0]: 0}
      return dataclasses.replace(done, metrics=done.metrics | none)
    config = self._run.config
    shape = config.model_shape()
    uploads = StoredUploads(
      self._uploads.directory,
      done.round_num,
      shape,
      config.method.upload(config),
    )
    context = SolveContext(
      shape=shape,
      score=self._validation_score(),
      seed=randomness.seed_of(
        'server_solve', config.seeds.split_seed, done.round_num
      ),
      uncompressed_mean=self._uncompressed_mean(done),
    )
    start = uploads.mean()
    average = None if context.score is None else context.score(start)
    done.write_line(
      f'Round {done.round_num}: solving over {len(uploads)} uploads'
    )
    result = config.method.solve(uploads, start, context)
    found = None if context.score is None else context.score(result.weights)
    values = len(uploads), average, found, result.best_step, result.residual
    timings = {
      'solve_seconds': time.monotonic() - begin,
      'upload_bytes': uploads.num_bytes,
    }
    metrics = dict(zip(columns.ONE_SHOT_NAMES, values, strict=True))
    done = dataclasses.replace(
      done, metrics=done.metrics | metrics, timings=done.timings | timings
    )
    weights = tuple(result.weights)
    if not all(np.all(np.isfinite(weight)) for weight in weights):
      metrics = done.metrics | {'train/update_is_non_finite': 1}
      return dataclasses.replace(done, state=done.state_before, metrics=metrics)
    if [w.shape for w in weights] != list(weight_shapes(shape).values()):
      return dataclasses.replace(done, weights=weights)
    state = self._run.process.set_model_weights(
      done.state, tff.learning.models.ModelWeights(weights, ())
    )
    return dataclasses.replace(done, state=state)

  def discard_uploads(self) -> None:
    """Removes the uploads of a round that counts, unless they are kept."""
    if not self._run.config.algorithm.keeps_uploads:
      self._uploads.discard_after(-1)

  def _uncompressed_mean(self, done):
    """Returns the mean of what clients trained, where uploads lost digits."""
    is_compressed = self._run.config.algorithm.compression != 'none'
    # Uploads of another run are solved without a round.
    if not is_compressed or done.state is done.state_before:
      return None
    weights = self._run.process.get_model_weights(done.state)
    return tuple(map(np.asarray, weights.trainable))

  def _validation_score(self):
    """Returns the score of weights on the server's rows, drawn once."""
    run, config = self._run, self._run.config
    if self._score is None and config.algorithm.num_validation_rows:
      rows = server_validation.draw_rows(
        run.participating,
        run.client_rows,
        num_rows=config.algorithm.num_validation_rows,
        split_seed=config.seeds.split_seed,
      )
      if rows:
        self._score = server_validation.Score(run.evaluator, rows)
    return self._score
