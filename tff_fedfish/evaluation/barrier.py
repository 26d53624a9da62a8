"""The Client-Server Barrier of one round.

Dhawan et al. (2024), FedFish, equation 5: the mean over a round's cohort of
L_i(theta_G_new) - L_i(theta_i), where theta_i is what client i trained,
theta_G_new the server's model after the round, and L_i the loss on the very
sequences that client i trained on. A round keeps no client's model, so the
clients train again, one after the other, as the process trains them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.run.cohort_data import TrainingClient


def measure_clients(
  process: Any,
  state: Any,
  new_state: Any,
  evaluator: ClientEvaluator,
  clients: Iterable[TrainingClient],
  *,
  on_client_trained: Callable[[Mapping[str, Any]], None] = lambda trained: None,
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
      if not len(rows):
        continue
      entries.append(
        _client_barrier(
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


def _client_barrier(
  process, state, after, evaluator, client, rows, *, on_client_trained
) -> ClientBarrier:
  """Measures a client on its sequences of the round, each scored once."""
  if rows.is_repeated is not None:
    rows = rows.select(~rows.is_repeated)
  (trained,) = process.trained_models(state, [client])
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
