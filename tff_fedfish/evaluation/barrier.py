"""The Client-Server Barrier of one round.

Dhawan et al. (2024), FedFish, equation 5: the mean over a round's cohort of
L_i(theta_G_new) - L_i(theta_i), where theta_i is what client i trained,
theta_G_new the server's model after the round, and L_i the loss on the very
sequences that client i trained on. A round keeps no client's model, so the
clients train again, one after the other, as the process trains them.

Most of it is there before any aggregation: it ranks nothing.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.run.cohorts import TrainingClient

Tensors = Sequence[np.ndarray]


def measure_clients(
  process: Any,
  state: Any,
  new_weights: Tensors,
  evaluator: ClientEvaluator,
  clients: Iterable[TrainingClient],
  *,
  on_client_trained: Callable[[Mapping[str, Any]], None] = (
    lambda trained: None
  ),
  on_failure: Callable[[TrainingClient, Exception], None] | None = None,
  before_scoring: Callable[[], None] = lambda: None,
) -> list[ClientBarrier]:
  """Trains clients again and sets their models beside the server's.

  Args:
    process: The run's learning process.
    state: Its state before the round, with the learning rates of the round.
    new_weights: The server's weights after the round.
    evaluator: That of the config.
    clients: Those to be measured, taken one at a time.
    on_client_trained: Called with what `process.trained_models` gives of each
      client.
    on_failure: Called with a client that raises, and what; the client is left
      out. None: the exception is raised.
    before_scoring: Called before the server's model is scored on a client; what
      it raises is raised.

  Returns:
    One entry per client that has sequences, in their order.
  """
  new_weights = tuple(map(np.asarray, new_weights))
  local = []
  for client in clients:
    with _leaving_out(client, on_failure):
      rows = _rows(client)
      if not len(rows):
        continue
      trained = _train(process, state, client)
      on_client_trained(trained)
      local.append((client, evaluator.score(trained['trainable'], rows)))
      # One such model at a time; its update is as large, or twice that.
      del trained
  entries = []
  for client, score in local:
    before_scoring()
    with _leaving_out(client, on_failure):
      after = evaluator.score(new_weights, _rows(client))
      entries.append(
        ClientBarrier(
          client_id=client.client_id,
          local_loss=score.loss,
          global_loss=after.loss,
          local_accuracy=score.accuracy,
          global_accuracy=after.accuracy,
        )
      )
  return entries


@contextlib.contextmanager
def _leaving_out(client, on_failure):
  """Hands on what a client raises; it is raised if there is no `on_failure`."""
  try:
    yield
  except Exception as error:  # pylint: disable=broad-exception-caught
    if on_failure is None:
      raise
    on_failure(client, error)


def _train(process, state, client):
  (trained,) = process.trained_models(state, [client])
  return trained


def _rows(client):
  """Returns a client's sequences of the round, each of them once."""
  rows = client.sequences()
  if rows.is_repeated is not None:
    rows = rows.select(~rows.is_repeated)
  return rows
