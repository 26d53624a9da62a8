"""Options of a round's execution, and the outcome of its clients."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.errors import FailedError

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
  """Parts into which a cohort is divided, >= 1. Parts are summed up client by
  client and then merged in order: equal values give equal results."""
  tolerates_failures: bool = False
  """Whether a client that raises twice takes part with weight 0. Otherwise its
  exception is the round's, as in TFF's own context."""
  quorum: float = 0.0
  """If failures are tolerated: a round fails unless more than this fraction of
  its clients took part."""
  should_stop: Callable[[], bool] | None = None
  """Asked before each client. True: RoundInterrupted is raised, and the round
  leaves nothing behind."""
  on_client_output: Callable[[int, Any], None] | None = None
  """Receives each client's position and its output (`client_outputs.py`), in
  cohort order. Called with (position, None) when an output is withdrawn because
  its part of the cohort runs again. None: outputs are not computed."""
  on_notice: Callable[[str], None] | None = None
  """Receives a line, at once, on workers that were lost, and on the first
  client that failed on a host."""
  workers: Any = None
  """Runner of the parts of a cohort, such as `ray_workers.RayWorkers`. None:
  this process."""


_current: contextvars.ContextVar[tuple[RoundOptions, RoundOutcome] | None] = (
  contextvars.ContextVar('round_options', default=None)
)


@contextlib.contextmanager
def use_round_options(
  options: RoundOptions, outcome: RoundOutcome | None = None
) -> Iterator[RoundOutcome]:
  """Executes the rounds of this thread within the block as `options` say.

  Yields:
    The outcome, or a new one, filled by the rounds in the block. The quorum of
    each counts its own failures only.
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
  # Late: what a run counts is asked for before TensorFlow is imported.
  import tensorflow as tf

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
