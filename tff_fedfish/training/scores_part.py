"""Scores of a run's models while it trains, in the rounds that are due."""

import time
from collections.abc import Callable

from tff_fedfish.evaluation import evaluator, own_tests
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training.parts import BuiltRun, FinishedRound, RoundPart


class _ScoresPart(RoundPart):
  def __init__(self, run: BuiltRun, should_stop: Callable[[], bool]):
    self._run, self._should_stop = run, should_stop

  def measure(self, done: FinishedRound) -> None:
    """See `RoundPart`."""
    every = self._run.config.evaluation.every_num_rounds
    if self._run.is_due(done.round_num, every):
      start = time.monotonic()
      done.metrics.update(self._score(done))
      done.timings['evaluation_seconds'] = time.monotonic() - start


class HeldOutScorePart(_ScoresPart):
  """Scores the global model on held-out clients."""

  def _score(self, done):
    run = self._run
    fixed = run.process.get_model_weights(done.state).non_trainable
    return evaluator.mean_score(
      run.evaluator,
      tuple(run.weights_after(done)),
      run.checked.sample,
      non_trainable=tuple(fixed),
      should_stop=self._should_stop,
    )


class PersonalScorePart(_ScoresPart):
  """Scores personal models of the first clients on their own test rows."""

  def __init__(
    self,
    run: BuiltRun,
    should_stop: Callable[[], bool],
    inputs: ClientInputs | None,
  ):
    """Reads nothing yet; see `cohort` for the inputs."""
    super().__init__(run, should_stop)
    self._inputs = inputs
    self._rows = row_source(run.config).with_test_rows(
      run.checked.corpus, run.client_rows
    )

  def _score(self, done):
    run, settings = self._run, self._run.config.evaluation
    tests = own_tests.OwnTests(
      evaluator=run.evaluator,
      client_rows=self._rows,
      participating=run.participating,
      kept=self._inputs,
      state=done.state,
      round_num=done.round_num,
    )
    scores = tests.scores(
      run.participating[: settings.num_clients],
      max_sequences=settings.max_sequences_per_client or None,
      should_stop=self._should_stop,
    )
    return own_tests.mean_score([score for *_, score in scores])
