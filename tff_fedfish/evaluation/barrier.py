"""The Client-Server Barrier of one round.

Dhawan et al. (2024), FedFish, equation 5: the mean over a round's cohort of
L_i(theta_G_new) - L_i(theta_i), where theta_i is what client i trained,
theta_G_new the server's model after the round, and L_i the loss on the very
sequences that client i trained on. A round keeps no client's model, so the
clients train again, one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.sequences import Rows
from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.training.progress import Progress, Stages


def measure_barrier(
  process: Any,
  state: Any,
  evaluator: ClientEvaluator,
  cohort: Sequence[tuple[bytes, Rows]],
  *,
  local_batch_size: int,
  num_local_epochs: int,
  learning_rate: float,
  visit: Callable[[tuple[Any, ...], Rows], None] | None = None,
) -> list[ClientBarrier]:
  """Runs the round that follows `state`, and each client's training again.

  Args:
    process: The run's learning process.
    state: Its state before the round.
    evaluator: Fine-tunes as the run's clients train: same optimizer and
      batches.
    cohort: Client id and this round's training sequences, in their order.
    local_batch_size: Sequences per local step of the run.
    num_local_epochs: E of the run.
    learning_rate: Client learning rate of the run.
    visit: Called with the weights that each client trained, and its sequences.

  Returns:
    One entry per client that has sequences, in the order of the cohort.
  """
  cohort = [(client_id, data) for client_id, data in cohort if len(data)]
  before = tuple(process.get_model_weights(state).trainable)
  datasets = [
    sequences_lib.to_dataset(data, local_batch_size) for _, data in cohort
  ]
  with Stages()('replaying the round'):
    new_state = process.next(state, datasets).state
  after = tuple(process.get_model_weights(new_state).trainable)
  barriers = []
  with Progress('barrier', len(cohort), unit='client') as progress:
    for client_id, data in cohort:
      barriers.append(
        client_barrier(
          evaluator,
          before,
          after,
          client_id,
          data,
          num_local_epochs=num_local_epochs,
          learning_rate=learning_rate,
          visit=visit,
        )
      )
      progress.advance()
  return barriers


def client_barrier(
  evaluator: ClientEvaluator,
  before: tuple[Any, ...],
  after: tuple[Any, ...],
  client_id: bytes,
  data: Rows,
  *,
  num_local_epochs: int,
  learning_rate: float,
  visit: Callable[[tuple[Any, ...], Rows], None] | None = None,
) -> ClientBarrier:
  """Trains a client again and sets its model beside the server's new one.

  Args:
    evaluator: See `measure_barrier`.
    before: The weights that the round sent to its clients.
    after: Those that came out of it.
    client_id: The client.
    data: Its training sequences of the round, in their order; at least one.
    num_local_epochs: E of the run.
    learning_rate: Client learning rate of the run.
    visit: See `measure_barrier`.
  """
  trained = evaluator.fine_tune(
    before,
    data,
    num_local_epochs=num_local_epochs,
    learning_rate=learning_rate,
  )
  local = evaluator.score(trained, data)
  if visit is not None:
    visit(trained, data)
  # One such model at a time.
  del trained
  global_ = evaluator.score(after, data)
  return ClientBarrier(
    client_id=client_id,
    local_loss=local.loss,
    global_loss=global_.loss,
    local_accuracy=local.accuracy,
    global_accuracy=global_.accuracy,
  )
