"""The Client-Server Barrier of one round.

Dhawan et al. (2024), FedFish, equation 5: the mean over a round's cohort of
L_i(theta_G_new) - L_i(theta_i), where theta_i is what client i trained,
theta_G_new the server's model after the round, and L_i the loss on the very
sequences that client i trained on. A round keeps no client's model, so the
clients train again, one after the other, as the process trains them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.data.sequences import Rows
from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.progress import Progress, Stages
from tff_fedfish.run.cohort_data import TrainingClient


def replay_round(
  process: Any,
  state: Any,
  evaluator: ClientEvaluator,
  cohort: Sequence[TrainingClient],
  *,
  on_client_trained: Callable[[Mapping[str, Any]], None] | None = None,
) -> list[ClientBarrier]:
  """Runs the round that follows `state`, and measures its clients.

  Args:
    process: The run's learning process.
    state: Its state before the round, with the learning rates of the round.
    evaluator: That of the config.
    cohort: The round's clients.
    on_client_trained: See `measure_clients`.

  Returns:
    One entry per client that has sequences, in the order of the cohort.
  """
  with Stages()('replaying the round'):
    new_state = process.next(state, list(cohort)).state

  def advancing(progress):
    for client in cohort:
      yield client
      progress.advance()

  with Progress('barrier', len(cohort), unit='client') as progress:
    return measure_clients(
      process,
      state,
      new_state,
      evaluator,
      advancing(progress),
      on_client_trained=on_client_trained,
    )


def measure_clients(
  process: Any,
  state: Any,
  new_state: Any,
  evaluator: ClientEvaluator,
  clients: Iterable[TrainingClient],
  *,
  on_client_trained: Callable[[Mapping[str, Any]], None] | None = None,
  on_failure: Callable[[TrainingClient, Exception], None] | None = None,
) -> list[ClientBarrier]:
  """Trains clients again and sets their models beside the server's new one.

  Args:
    process: The run's learning process.
    state: Its state before the round, with the learning rates of the round.
    new_state: Its state after the round.
    evaluator: That of the config.
    clients: Those to be measured, taken one at a time.
    on_client_trained: Called with what `process.trained_models` gives of each
      client.
    on_failure: Called with a client that raises, and what; the client is left
      out. None: the exception is raised.

  Returns:
    One entry per client that has sequences, in their order.
  """
  after = tuple(process.get_model_weights(new_state).trainable)
  entries = []
  for client in clients:
    try:
      rows = client.sequences()
      if len(rows):
        entries.append(
          client_barrier(
            process,
            state,
            after,
            evaluator,
            client,
            rows,
            on_client_trained=on_client_trained,
          )
        )
    except Exception as error:  # pylint: disable=broad-exception-caught
      if on_failure is None:
        raise
      on_failure(client, error)
  return entries


def client_barrier(
  process: Any,
  state: Any,
  after: tuple[Any, ...],
  evaluator: ClientEvaluator,
  client: TrainingClient,
  rows: Rows,
  *,
  on_client_trained: Callable[[Mapping[str, Any]], None] | None = None,
) -> ClientBarrier:
  """Measures one client.

  Args:
    process: See `measure_clients`.
    state: See `measure_clients`.
    after: Trainable weights of the server after the round.
    evaluator: See `measure_clients`.
    client: The client.
    rows: Its training sequences of the round; at least one. Those that come
      twice are scored once.
    on_client_trained: See `measure_clients`.
  """
  if rows.is_repeated is not None:
    rows = rows.select(~rows.is_repeated)
  (trained,) = process.trained_models(state, [client])
  if on_client_trained is not None:
    on_client_trained(trained)
  trainable = trained['trainable']
  # Its update is as large as the model, or twice that.
  del trained
  local = evaluator.score(trainable, rows)
  # One such model at a time.
  del trainable
  global_ = evaluator.score(after, rows)
  return ClientBarrier(
    client_id=client.client_id,
    local_loss=local.loss,
    global_loss=global_.loss,
    local_accuracy=local.accuracy,
    global_accuracy=global_.accuracy,
  )
