"""Client inputs of a round: loaded data, or a loader."""

import abc
import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

VALIDATION, CANDIDATES = 'validation', 'candidates'
"""Inputs of a client besides its batches and its state: batches of its
validation rows; models, <position=int32, weights=T>."""
LOCAL_PRIVACY = 'local_privacy'
"""Input of a client that trains by DP-SGD: one element <noise_seed=int32[2],
num_examples=int64, num_unobserved=int64>, see `local_steps.DrawnSteps`."""
ROUNDING_SEED = 'rounding_seed'
"""Input of a client whose delta is quantized: one element, int32[2]."""


class LoadedClient(NamedTuple):
  """A client's data in memory."""

  data: Any
  """A value of the computation's client type, such as a tf.data.Dataset."""
  counts: Mapping[str, int]
  """Counts of the loading, by name."""


class ClientLoader(abc.ABC):
  """Stands for a client's data until they are needed, in any process.

  A round's argument may hold loaders in place of data. They are pickled for
  workers. Loading twice must give the same: a client that fails is tried again.
  """

  @abc.abstractmethod
  def load(self) -> LoadedClient:
    """Returns the client's data."""


def load(client: Any) -> LoadedClient:
  """Returns the data of a loader, or the value itself."""
  if isinstance(client, ClientLoader):
    return client.load()
  return LoadedClient(client, {})


def load_ahead(clients: Iterable[Any]) -> Iterator[Callable[[], LoadedClient]]:
  """Yields, per client, a function that returns its data or raises what failed.

  A thread loads one client while its predecessor is worked on: no more than two
  clients' data are in memory.
  """
  with concurrent.futures.ThreadPoolExecutor(1, 'load_client') as pool:
    loading = collections.deque()
    for client in clients:
      loading.append(pool.submit(load, client))
      if len(loading) == 2:
        yield loading.popleft().result
    if loading:
      yield loading.popleft().result
