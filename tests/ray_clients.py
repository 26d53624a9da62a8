"""Clients for tests with worker processes, to which this module is sent."""

import collections
import dataclasses
import os
import pathlib
import signal
import time
import types

import numpy as np

from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient


@dataclasses.dataclass
class Client(ClientLoader):
  """Some rows for `linear_models.linear_model(3)`, and what goes wrong.

  Each load writes a file: NUMBER-PROCESS_ID-COUNTER.
  """

  number: int
  directory: str
  num_failures: int = 0
  """Times that loading raises, in whatever process."""
  num_deaths: int = 0
  """Times that loading ends its process."""
  waits_for: str = ''
  """A file that must be there before loading goes on."""

  def load(self) -> LoadedClient:
    """Returns number + 2 rows in batches of 2."""
    import tensorflow as tf

    directory = pathlib.Path(self.directory)
    num_loads = len(list(directory.glob(f'{self.number}-*')))
    (directory / f'{self.number}-{os.getpid()}-{num_loads}').touch()
    while self.waits_for and not (directory / self.waits_for).exists():
      time.sleep(0.02)
    if num_loads < self.num_deaths:
      os.kill(os.getpid(), signal.SIGKILL)
    if num_loads < self.num_failures:
      raise OSError(f'client {self.number} is gone')
    random = np.random.RandomState(self.number)
    num_rows = self.number + 2
    rows = collections.OrderedDict(
      x=random.normal(size=(num_rows, 3)).astype(np.float32),
      y=random.normal(size=num_rows).astype(np.float32),
    )
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    return LoadedClient(dataset, {'num_rows': num_rows})


@dataclasses.dataclass
class KeepingClient(Client):
  """A `Client` of SCAFFOLD with that model."""

  kept: tuple[float, ...] | None = None
  """Its control variate and steps; None: it takes part for the first time."""

  def load(self) -> LoadedClient:
    """Returns the data, and what it kept."""
    import tensorflow as tf

    data, counts = super().load()
    kept = np.float32(self.kept or [0] * 5)
    state = tf.data.Dataset.from_tensors((kept[:3], kept[3], kept[4]))
    if self.kept is None:
      state = state.take(0)
    state = collections.OrderedDict(control_variate=state)
    return LoadedClient(collections.OrderedDict(data=data, state=state), counts)


def process_ids(workers) -> list[int]:
  """Returns the process ids of a `RayWorkers`, when all are up."""
  return _ask(workers, lambda worker: os.getpid())


def tensorflow_options(workers) -> list[tuple[int, int, bool, bool]]:
  """Returns options of TensorFlow in each worker.

  Threads within an op and between ops, TensorFloat-32, deterministic ops.
  """

  def ask(worker):
    from tensorflow.config import experimental, threading
    from tensorflow.python.framework import config

    return (
      threading.get_intra_op_parallelism_threads(),
      threading.get_inter_op_parallelism_threads(),
      experimental.tensor_float_32_execution_enabled(),
      config.is_op_determinism_enabled(),
    )

  return _ask(workers, ask)


def _ask(workers, question):
  import ray

  workers.start()
  workers._pool.wait_for_all(lambda: False)
  up = workers._pool.up
  return ray.get([worker.__ray_call__.remote(question) for worker in up])


class LightWorker:
  """Stands for a `RayWorker`, without TensorFlow: it is up in a second.

  A client is a word: 'fatal' ends the worker, 'wrong' raises.
  """

  def __init__(self, settings, shows_gpus, expected):
    from tff_fedfish.runtime.ray_hosts import require_same

    require_same(expected)

  def place(self) -> tuple[str, int]:
    from tff_fedfish.runtime.ray_hosts import host_name

    return host_name(), os.getpid()

  def add_up(self, spec, broadcast, clients, failed_once):
    """Returns as its sum how many clients there are."""
    from tff_fedfish.runtime.round_options import RoundOutcome

    words = [word for _, word in clients]
    if 'fatal' in words:
      os.kill(os.getpid(), signal.SIGKILL)
    if 'wrong' in words:
      raise KeyError('a worker that is wrong')
    # As a `PartResult`, whose module imports TensorFlow.
    return types.SimpleNamespace(
      accumulator=[np.float32(len(words))],
      outcome=RoundOutcome(),
      outputs=(),
    )


class BrokenWorker(LightWorker):
  """Cannot be set up, as on a machine without TensorFlow."""

  def __init__(self, *_):
    import absent_from_workers  # noqa: F401


class DyingWorker(LightWorker):
  """Ends while it is set up, as one for which there is no memory."""

  def __init__(self, *_):
    os.kill(os.getpid(), signal.SIGKILL)


class BusyActor:
  """Takes what Ray has; not a worker."""

  def is_up(self) -> bool:
    return True
