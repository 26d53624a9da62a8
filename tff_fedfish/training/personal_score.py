"""Scores of models of clients' own while a run trains."""

import time

from tff_fedfish.evaluation import own_tests
from tff_fedfish.run import run_inputs
from tff_fedfish.training.round_callbacks import FinishedRound, RoundCallback


class PersonalScore(RoundCallback):
  """Scores clients on their own test rows in the rounds that are due.

  That is the first `evaluation.num_clients` clients. A method without models of
  clients' own has no such scores.
  """

  def __init__(self, run, should_stop, kept):
    """Reads nothing yet; see `replayed_rounds.Barrier` for the arguments."""
    self._run, self._should_stop, self._kept = run, should_stop, kept
    config = run.config
    self._client_ids = ()
    if config.method.personal(config) is not None:
      self._client_ids = run.participating[: config.evaluation.num_clients]
      self._rows = run_inputs.with_test_rows(
        config, run.checked.corpus, run.client_rows
      )

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    run, start = self._run, time.monotonic()
    evaluation = run.config.evaluation
    is_due = run.is_due(done.round_num, evaluation.every_num_rounds)
    if not self._client_ids or not is_due:
      return
    models = own_tests.PersonalModels(
      kept=self._kept,
      state=done.state,
      round_num=done.round_num,
      client_rows=self._rows,
    )
    found = own_tests.scores(
      run.evaluator,
      models.weights_of,
      self._rows,
      self._client_ids,
      max_sequences=evaluation.max_sequences_per_client or None,
      should_stop=self._should_stop,
    )
    score = own_tests.mean_score([score for *_, score in found])
    done.metrics.update(score)
    done.timings['evaluation_seconds'] = time.monotonic() - start
