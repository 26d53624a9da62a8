"""`fedfish evaluate`: a checkpoint on the clients of a corpus."""

import contextlib
import os
import pathlib
import sys

import numpy as np

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.options import EvaluationOptions
from tff_fedfish.evaluation.plan import Plan, plan_evaluation
from tff_fedfish.evaluation.results import Evaluation, read_evaluation
from tff_fedfish.progress import stage
from tff_fedfish.run import checkpoints, divergence


@checkpoints.again_if_removed
def evaluate(
  checkpoint: str | os.PathLike,
  data: str | os.PathLike,
  output: str | os.PathLike | None,
  options: EvaluationOptions,
) -> tuple[pathlib.Path, Evaluation]:
  """Evaluates a checkpoint and writes the results.

  Args:
    checkpoint: A checkpoint, a run directory (its last), 'RUN@best' (its best),
      or a directory with a GPT-2 of transformers.
    data: A corpus of the kind that the run trained on: grouped, or the files
      of the same corpus of images. Of another part of the split that the run
      trained on, such as `validation`, all clients are held out.
    output: Where to write; None: `evaluations/NAME` in the run, NAME being the
      corpus's directory, with '_best' after it for 'RUN@best'. Required with a
      directory that is no run's.
    options: What to measure.

  Returns:
    (output directory, what was written).

  Raises:
    UserError: If the checkpoint, the corpus, its clients or the output cannot
      be used.
  """
  plan = plan_evaluation(checkpoint, data, output, options)
  if plan.scores_choosers:
    facts = plan.facts['checkpoint']
    print(
      f'fedfish: note: round {facts["round"]} was chosen on the clients that '
      f'are scored, as the best of {facts["best_of_rounds"]} evaluated rounds.',
      file=sys.stderr,
    )
  with stage('importing TensorFlow Federated'):
    # Late: the errors above must not wait for it.
    from tff_fedfish.evaluation import measure

  measure.measure(plan)
  evaluation = read_evaluation(plan.output)
  if not np.isfinite(evaluation.clients['loss_after']).any():
    _warn_of_non_finite_losses(plan)
  return plan.output, evaluation


def _warn_of_non_finite_losses(plan: Plan) -> None:
  path, run = plan.checkpoint.path, plan.run
  line = (
    'fedfish: warning: no client has a finite loss with the model in '
    f'{str(path)!r}.'
  )
  # A run's metrics.csv need not have been copied along.
  with contextlib.suppress(UserError):
    good = run and divergence.read_history(run, 0).last_good_checkpoint()
    if good and good != path:
      line += f' The last good checkpoint of its run is {str(good)!r}.'
  print(line, file=sys.stderr)
