"""Options of a round's execution, and the outcome of its clients."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.errors import FailedError
from tff_fedfish.late import tf

FAILURE_REASONS = ('data', 'out_of_memory', 'error')


class RoundInterrupted(Exception):
  """The round was given up between two clients because it was asked to be."""


@dataclasses.dataclass(frozen=True)
class ClientFailure:
  """A client that raised."""

  client_index: int
  """Its position in the cohort."""
  reason: str
  """One of FAILURE_REASONS. 'data': its data could not be read, which is
  recognized in loops over an iterator, such as those of our algorithms."""
  message: str
  """The exception's type and text, in one line."""


@dataclasses.dataclass
class RoundOutcome:
  """Outcome of a round's clients, besides the round's result."""

  failures: list[ClientFailure] = dataclasses.field(default_factory=list)
  """Clients that raised twice and took part with weight 0."""
  counts: dict[int, Mapping[str, int]] = dataclasses.field(default_factory=dict)
  """Counts of the clients' loaders, by client index."""
  num_lost_workers: int = 0
  """Worker processes that died and were replaced."""

  def num_failures(self, reason: str) -> int:
    """Returns how many clients failed for a reason."""
    return sum(failure.reason == reason for failure in self.failures)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundOptions:
  """Execution of the rounds within `use_round_options`."""

  num_partial_sums: int = 1
  """Parts of a cohort, >= 1, each summed up client by client and then merged in
  order: equal values give equal results."""
  tolerates_failures: bool = False
  """Whether a client that raises twice takes part with weight 0. Otherwise its
  exception is the round's."""
  quorum: float = 0.0
  """If failures are tolerated: the fraction of clients to be exceeded."""
  should_stop: Callable[[], bool] = lambda: False
  """Asked before each client. True: RoundInterrupted is raised."""
  on_client_output: Callable[[int, Any], None] | None = None
  """Receives each client's position and its output (`client_outputs.py`), in
  cohort order; (position, None) withdraws one whose client runs again. None:
  outputs are not computed."""
  on_notice: Callable[[str], None] = lambda _: None
  """Receives a line on a lost or late worker, and on a host's first failure."""
  workers: Any = None
  """A `ray_workers.RayWorkers`; None: this process."""


_current: contextvars.ContextVar[tuple[RoundOptions, RoundOutcome] | None] = (
  contextvars.ContextVar('round_options', default=None)
)


@contextlib.contextmanager
def use_round_options(
  options: RoundOptions, outcome: RoundOutcome | None = None
) -> Iterator[RoundOutcome]:
  """Executes this thread's rounds in the block as `options` say.

  Yields the outcome, or a new one, which they fill.
  """
  outcome = RoundOutcome() if outcome is None else outcome
  token = _current.set((options, outcome))
  try:
    yield outcome
  finally:
    _current.reset(token)


def current() -> tuple[RoundOptions, RoundOutcome]:
  """Returns the options in force and the outcome to fill."""
  return _current.get() or (RoundOptions(), RoundOutcome())


def describe_failure(
  client_index: int, error: BaseException, *, while_loading: bool
) -> ClientFailure:
  """Returns the reason and the words of an exception that a client raised."""
  if isinstance(error, MemoryError | tf.errors.ResourceExhaustedError):
    reason = 'out_of_memory'
  elif while_loading or (
    # A dataset is read within the client's graph.
    isinstance(error, tf.errors.OpError) and 'IteratorGetNext' in str(error)
  ):
    reason = 'data'
  else:
    reason = 'error'
  text = ' '.join(str(error).split())[:500]
  return ClientFailure(client_index, reason, f'{type(error).__name__}: {text}')


def require_quorum(
  options: RoundOptions, failures: Sequence[ClientFailure], num_clients: int
) -> None:
  """Raises FailedError if too many clients of a round failed."""
  num_left = num_clients - len(failures)
  if failures and num_left <= options.quorum * num_clients:
    raise FailedError(
      f'Only {num_left} of {num_clients} clients of the round took part, but '
      f'more than {options.quorum:g} of them are required '
      '(`--config.engine.quorum`). The first that failed: '
      f'{failures[0].message}'
    )
