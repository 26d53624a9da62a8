"""Scores of a run's models while it trains, in the rounds that are due."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tff_fedfish.evaluation import evaluator, own_tests
from tff_fedfish.run import columns
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training.parts import BuiltRun, FinishedRound

_LABELS = {'held_out': 'held-out loss', 'personal': 'personal loss'}


class ScoresPart:
  """Scores the global model on held-out clients, or personal models.

  The personal models of the first clients are scored on their own test rows.
  """

  def __init__(
    self,
    run: BuiltRun,
    should_stop: Callable[[], bool],
    inputs: ClientInputs | None,
  ):
    """Reads nothing yet; see `cohort` for the inputs."""
    self._run, self._should_stop, self._inputs = run, should_stop, inputs
    self._own_rows = None
    if run.config.method.personal(run.config) is not None:
      self._own_rows = row_source(run.config).with_test_rows(
        run.checked.corpus, run.client_rows
      )

  def measure(self, done: FinishedRound) -> None:
    """Adds the scores of a round.

    Raises:
      RoundInterrupted: If the run is to stop.
    """
    start = time.monotonic()
    score = self._score_held_out if self._own_rows is None else self._score_own
    done.metrics.update(score(done))
    done.timings['evaluation_seconds'] = time.monotonic() - start

  def _score_held_out(self, done):
    scores = self._score_sample(done, self._run.checked.sample)
    validation = self._run.checked.validation
    if validation.clients:
      own = self._score_sample(done, validation)
      for name in columns.VALIDATION_NAMES:
        scores[name] = own[name.replace('validation', 'held_out')]
    return scores

  def _score_sample(self, done, sample):
    run = self._run
    fixed = run.process.get_model_weights(done.state).non_trainable
    return evaluator.mean_score(
      run.evaluator,
      tuple(run.weights_after(done)),
      sample,
      non_trainable=tuple(fixed),
      should_stop=self._should_stop,
    )

  def _score_own(self, done):
    run, settings = self._run, self._run.config.evaluation
    tests = own_tests.OwnTests(
      evaluator=run.evaluator,
      client_rows=self._own_rows,
      kept=self._inputs,
      state=done.state,
      round_num=done.round_num,
    )
    return tests.mean_score(
      run.participating[: settings.num_clients],
      settings.max_sequences_per_client or None,
      self._should_stop,
    )


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
