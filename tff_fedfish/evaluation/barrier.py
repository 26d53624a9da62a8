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
import tensorflow as tf

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.effective_sample_size import client_mass_of
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.run.cohort_data import TrainingClient

Tensors = Sequence[np.ndarray]


class BareMeans:
  """The means of a cohort's model deltas, without a server optimizer.

  Takes 24 bytes of the host's memory for each weight.
  """

  def __init__(self, config: TrainConfig, state: Any):
    """Starts without clients, from the process's state before the round."""
    self._client_mass = None
    if config.method.client_mass is not None:
      self._client_mass = client_mass_of(config)
    self._fraction = config.method.plain_mean_fraction(config)
    self._state = getattr(state, 'aggregator', ())
    self._weight_sum = 0.0
    self._sums: list[list[np.ndarray]] = []

  def add(self, before: Tensors, trained: Mapping[str, Any]) -> None:
    """Adds a client; one without client weight does not count.

    Args:
      before: The server's weights.
      trained: What `process.trained_models` gives of the client.
    """
    weight, update = float(trained['client_weight']), trained['update']
    if not weight > 0:
      return
    deltas = _deltas(before, trained['trainable'], update)
    masses = [weight] * len(deltas)
    if self._client_mass is not None:
      masses = tf.nest.flatten(
        self._client_mass(update, tf.constant(weight, tf.float32), self._state)
      )
    if not self._sums:
      self._sums = [[np.zeros(d.shape) for _ in range(3)] for d in deltas]
    self._weight_sum += weight
    for sums, delta, mass in zip(self._sums, deltas, masses, strict=True):
      mass = np.asarray(mass, np.float64)
      sums[0] += weight * delta
      sums[1] += mass * delta
      sums[2] += mass

  def plain(self) -> list[np.ndarray]:
    """Returns sum(w delta) / sum(w)."""
    return [plain / self._weight_sum for plain, _, _ in self._sums]

  def own(self) -> list[np.ndarray]:
    """Returns the method's mean, 0 where no client has mass."""
    means = []
    for plain, (_, moved, mass) in zip(self.plain(), self._sums, strict=True):
      own = np.divide(moved, mass, out=np.zeros_like(moved), where=mass > 0)
      means.append(self._fraction * plain + (1 - self._fraction) * own)
    return means

  def __bool__(self) -> bool:
    return self._weight_sum > 0


def bare_means(
  process: Any,
  state: Any,
  clients: Iterable[TrainingClient],
  *,
  config: TrainConfig,
  on_failure: Callable[[TrainingClient, Exception], None],
) -> BareMeans:
  """Trains clients again, and returns the means of their model deltas.

  See `measure_clients`; the config is the run's.
  """
  before = trainable(process, state)
  means = BareMeans(config, state)
  for client in clients:
    with _leaving_out(client, on_failure):
      means.add(before, _train(process, state, client))
  return means


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


def trainable(process: Any, state: Any) -> tuple[np.ndarray, ...]:
  """Returns the server's trainable weights."""
  return tuple(map(np.asarray, process.get_model_weights(state).trainable))


def _deltas(before, trainable, update):
  """Returns the model delta that a client gives, bounded as it may be."""
  found = tf.nest.flatten(getattr(update, 'model_delta', update))
  if [tuple(d.shape) for d in found] != [w.shape for w in before]:
    found = map(np.subtract, before, map(np.asarray, trainable))
  return [np.asarray(delta, np.float64) for delta in found]
