"""The Client-Server Barrier of one round.

Dhawan et al. (2024), FedFish, equation 5: the mean over a round's cohort of
L_i(theta_G_new) - L_i(theta_i), where theta_i is the model that client i
trained, theta_G_new the server's model after the round, and L_i the loss on the
sequences that client i trained on. A round keeps no client's model, so the
clients train again, one after the other, as the process trains them.

Most of the barrier is there before any aggregation: it ranks nothing.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation.evaluator import ClientEvaluator, build_evaluator
from tff_fedfish.evaluation.tables import ClientBarrier
from tff_fedfish.progress import Progress
from tff_fedfish.run import build, cohorts, model_state
from tff_fedfish.run.checkpoints import Checkpoint
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.cohorts import TrainingClient
from tff_fedfish.runtime import round_options


def replay_round(
  config: TrainConfig,
  checkpoint: Checkpoint,
  participating: Sequence[bytes],
  client_rows: ClientRows,
  states: ClientStates | None,
) -> list[ClientBarrier]:
  """Runs the round after a checkpoint again, bit for bit; measures its clients.

  `config` is the run's, in the phase of the checkpoint, `states` what clients
  kept. There is an entry for each client that has sequences.

  Raises:
    UserError: If the process does not give its clients' models, or the
      checkpoint is not of it.
  """
  process = build.build_learning_process(config)
  build.require_trained_models(config, process)
  state_type = process.initialize.type_signature.result
  state = model_state.from_tensors(
    checkpoint.tensors, state_type, checkpoint.path
  )
  round_num, kept = checkpoint.round_num + 1, None
  if states is not None:
    kept = ClientInputs(
      config=config, process=process, states=states, participating=participating
    )
  state = build.with_rates(process, state, config, round_num)
  cohort = cohorts.cohort(config, participating, client_rows, round_num, kept)
  # Each client trains in the round, and once more to give its model.
  with Progress('barrier', 2 * len(cohort), unit='client') as progress:
    asked = itertools.count()
    options = round_options.RoundOptions(
      num_partial_sums=config.num_partial_sums,
      # Asked before each client: those before it are done.
      should_stop=lambda: next(asked) > 0 and progress.advance() is not None,
    )
    with round_options.use_round_options(options):
      new_state = process.next(state, list(cohort)).state
    progress.advance()
    return measure_clients(
      process,
      state,
      process.get_model_weights(new_state).trainable,
      build_evaluator(config),
      _advancing(cohort, progress),
    )


def measure_clients(
  process: Any,
  state: Any,
  new_weights: Sequence[np.ndarray],
  evaluator: ClientEvaluator,
  clients: Iterable[TrainingClient],
  *,
  on_failure: Callable[[TrainingClient, Exception], None] | None = None,
) -> list[ClientBarrier]:
  """Trains clients again and compares their models with the server's.

  Args:
    process: The run's learning process.
    state: Its state before the round, with the learning rates of the round.
    new_weights: The server's weights after the round.
    evaluator: Scores the models.
    clients: Taken one at a time.
    on_failure: Called with a client that raises, and its exception; the client
      is left out. None: the exception is raised.

  Returns:
    An entry for each client that has sequences, in their order.
  """
  new_weights = tuple(map(np.asarray, new_weights))
  entries = []
  for client in clients:
    try:
      rows = client.sequences()
      if rows.is_repeated is not None:
        # Each of them once.
        rows = rows.select(~rows.is_repeated)
      if not len(rows):
        continue
      # One such model at a time; its update is as large, or twice that.
      local = evaluator.score(_train(process, state, client)['trainable'], rows)
      after = evaluator.score(new_weights, rows)
    except Exception as error:  # pylint: disable=broad-exception-caught
      if on_failure is None:
        raise
      on_failure(client, error)
      continue
    entries.append(
      ClientBarrier(
        client_id=client.client_id,
        local_loss=local.loss,
        global_loss=after.loss,
        local_accuracy=local.accuracy,
        global_accuracy=after.accuracy,
      )
    )
  return entries


def _advancing(cohort, progress):
  for client in cohort:
    yield client
    progress.advance()


def _train(process, state, client):
  (trained,) = process.trained_models(state, [client])
  return trained
