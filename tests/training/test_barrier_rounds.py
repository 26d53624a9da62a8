"""The barrier of a round: its numbers, its memory, and how it stops."""

import collections
import dataclasses
import types
import weakref

import linear_models
import numpy as np
import planned_configs
import tensorflow_federated as tff

from tff_fedfish import build_fed_avg
from tff_fedfish.evaluation.evaluator import Score
from tff_fedfish.run import cohorts
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.round_options import ClientFailure
from tff_fedfish.training.barrier_part import measure_barrier
from tff_fedfish.training.check import CheckedRun
from tff_fedfish.training.parts import BuiltRun, FinishedRound, Position


@dataclasses.dataclass(frozen=True, eq=False)
class _Points:
  """Data of a client of the scalar model."""

  x: tuple[float, ...] = ()
  y: tuple[float, ...] = ()
  num_dropped_sequences = num_lost_tokens = 0
  is_repeated = None

  def __len__(self):
    return len(self.x)

  def batch_features(self):
    return collections.OrderedDict(
      x=np.array(self.x, np.float32), y=np.array(self.y, np.float32)
    )


_POINTS = {
  b'a': _Points((1.0, 1.0), (2.0, 4.0)),
  b'b': _Points((2.0,), (-2.0,)),
  b'diverged': _Points((1.0,), (float('inf'),)),
  b'empty': _Points(),
  b'failed': _Points((1.0,), (1.0,)),
}
_CLIENT_IDS = sorted([*_POINTS, b'unreadable'])


class _Clients:
  """Client rows; those of a client without points cannot be read."""

  def training_sequences(self, client_id, **unused_options):
    if client_id not in _POINTS:
      raise OSError('no such block')
    return _POINTS[client_id]


def _config(**settings):
  values = dict(
    client_work__num_local_epochs=1,
    client_work__learning_rate=0.5,
    cohorts__cohort_size=6,
    evaluation__barrier_every_num_rounds=2,
    training__num_rounds=5,
  )
  return planned_configs.by_hand(**values | settings)


def _measure(done, workdir, process, evaluator, **settings):
  """Measures a round of a run that starts."""
  run = BuiltRun(
    config=_config(**settings),
    workdir=workdir,
    checked=CheckedRun(history=None),
    process=process,
    evaluator=evaluator,
    position=Position(0, None),
    participating=_CLIENT_IDS,
    client_rows=_Clients(),
    is_resumed=False,
  )
  measure_barrier(run, done, None, lambda: False)


def _done(round_num, state_before=None, state=None, **values):
  return FinishedRound(
    round_num=round_num, state_before=state_before, state=state, **values
  )


class _ScalarEvaluator:
  """Scores the prediction theta x; right is what is less than 1 away from y."""

  def score(self, weights, points):
    (theta,) = weights
    # Infinity minus infinity, where a client diverged, is no mistake.
    with np.errstate(invalid='ignore'):
      errors = np.abs(theta * np.array(points.x) - np.array(points.y))
    loss, accuracy = np.mean(errors**2) / 2, np.mean(errors < 1)
    return Score(float(loss), float(accuracy), len(points))


class _Weights:
  """Stands for what a client trained."""


class _Process:
  """Counts what is left of what its clients trained."""

  def __init__(self):
    self.alive = weakref.WeakSet()
    self.num_trained = 0

  def get_model_weights(self, state):
    del state
    return types.SimpleNamespace(trainable=())

  def trained_models(self, state, clients):
    del state
    (_,) = clients
    assert not self.alive
    trained = dict(trainable=_Weights(), update=_Weights(), client_weight=0.0)
    self.alive.update((trained['trainable'], trained['update']))
    self.num_trained += 1
    return [trained]


class _Evaluator:
  """Gives every model the same score, and holds nothing."""

  def score(self, *unused_arguments):
    return Score(1.0, 0.5, 2)


def test_by_hand(tmp_path):
  # One step of 0.5 from theta = 0 on the mean of (theta x - y)^2 / 2; the
  # server's new theta is -0.75.
  # a: gradient -(2 + 4) / 2 = -3, theta 1.5: errors 0.5 and 2.5, loss
  #    (0.125 + 3.125) / 2 = 1.625, half right. Server: errors 2.75 and 4.75,
  #    (3.78125 + 11.28125) / 2 = 7.53125, none right.
  # b: gradient 2 * 2 = 4, theta -2: error 2, loss 2, wrong. Server: error
  #    0.5, loss 0.125, right.
  # Before the round theta is 0: errors 2 and 4, loss 5; error 2, loss 2.
  # The mean delta is (2 x -1.5 + 2) / 3 = -1/3, theta 1/3: errors 5/3 and
  #    11/3, loss 146 / 36; error 8/3, loss 32 / 9.
  # Loss ((7.53125 - 1.625) + (0.125 - 2)) / 2 = 2.015625,
  # error ((0.5 - 0) + (0 - 1)) / 2 = -0.25.
  set_in_process_context()
  process = build_fed_avg(
    linear_models.scalar_model(),
    client_optimizer=linear_models.sgd(0.5),
    server_optimizer=linear_models.sgd(1.0),
  )
  cohort = cohorts.cohort(_config(), _CLIENT_IDS, _Clients(), 2)
  order = [client.client_id for client in cohort]
  state = process.initialize()
  weights = tff.learning.models.ModelWeights((-0.75,), ())
  lines = []
  done = _done(
    2,
    state,
    process.set_model_weights(state, weights),
    failures=[ClientFailure(order.index(b'failed'), 'error', 'none')],
    write_line=lines.append,
  )
  settings = dict(algorithm__name='fed_avg')
  _measure(done, tmp_path, process, _ScalarEvaluator(), **settings)
  assert lines == [
    "Round 2: client b'unreadable' was left out of the barrier, OSError: no "
    'such block'
  ]
  assert done.metrics == {
    'barrier/loss': 2.015625,
    'barrier/error': -0.25,
    'barrier/num_clients': 2,
    'barrier/num_non_finite_clients': 1,
    'barrier/num_failed_clients': 1,
  }


def test_one_client_model_at_a_time(tmp_path):
  process = _Process()
  _measure(_done(2), tmp_path, process, _Evaluator())
  # All but the empty and the unreadable one.
  assert process.num_trained == 4
  assert not process.alive
