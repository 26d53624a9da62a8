"""Clients for tests with worker processes, to which this module is sent."""

import collections
import dataclasses
import os
import pathlib
import signal
import time

import numpy as np

from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient


@dataclasses.dataclass
class Client(ClientLoader):
  """Some rows for `linear_models.linear_model(3)`, and what goes wrong.

  What happens is written to a directory, one file for each load: its name is
  the client's number, the process id and a counter.
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
