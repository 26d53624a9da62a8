"""Scores of a run's models while it trains, in the rounds that are due."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tff_fedfish.evaluation import evaluator, own_tests
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training.parts import BuiltRun, FinishedRound, RoundPart

_LABELS = {'held_out': 'held-out loss', 'personal': 'personal loss'}


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


def score_of(row: Mapping[str, Any], with_accuracy: bool) -> tuple[str, str]:
  """Returns label and score of a row, ('held-out loss', '6.1850 nats').

  Both are '' where it has no score.
  """
  for stage, label in _LABELS.items():
    if (loss := row.get(f'{stage}/loss')) is not None:
      score = f'{loss:.4f} nats'
      if with_accuracy:
        score += f', accuracy {row[f"{stage}/accuracy"]:.2%}'
      return label, score
  return '', ''


def last_score(rows: Iterable[Mapping[str, Any]], with_accuracy: bool) -> str:
  """Returns a line with the last score of a run beside the first, or ''."""
  scored = [(row['round'], *score_of(row, with_accuracy)) for row in rows]
  scored = [entry for entry in scored if entry[1]]
  if not scored:
    return ''
  (first, _, start), (last, label, end) = scored[0], scored[-1]
  line = f'{label.capitalize()}: {end}, round {last}'
  return line if first == last else f'{line} (round {first}: {start})'
