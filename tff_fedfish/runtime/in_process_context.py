"""A TFF execution context that runs `tff.learning` processes in this process.

TFF's default context copies every value into a second process, whose memory
grows with every round. Here a round becomes TensorFlow functions.
"""

import atexit
import contextlib
import dataclasses
import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import psutil
import tensorflow_federated as tff

from tff_fedfish.errors import require
from tff_fedfish.runtime import placement, round_options, tff_internals
from tff_fedfish.runtime.execution import (
  NO_FORM_ERRORS,
  build_execution,
  is_at_clients,
)

# Seconds that TFF's worker process is given to end by itself.
_CLOSING_SECONDS = 10


def set_in_process_context(
  default_num_clients: int = 0, *, deterministic_ops: bool = False
) -> 'InProcessContext':
  """Makes TFF computations run in this process, without TensorFloat-32.

  Args:
    default_num_clients: Number of clients, >= 0, of computations whose
      arguments do not tell it. Learning processes need none.
    deterministic_ops: Whether TensorFlow uses deterministic kernels from now
      on, at the cost of speed on a GPU. A process cannot take it back.

  Returns:
    The context, with all that it has compiled if it was already set with this
    number. Other threads must install it themselves:
    `with tff.framework.get_context_stack().install(context): ...`.

  Raises:
    ValueError: If the number is negative.
  """
  placement.set_up_devices(deterministic_ops=deterministic_ops)
  current = tff.framework.get_context_stack().current
  if (
    isinstance(current, InProcessContext)
    and current.default_num_clients == default_num_clients
  ):
    return current
  context = InProcessContext(default_num_clients)
  tff.framework.set_default_context(context)
  return context


@contextlib.contextmanager
def collect_client_outputs() -> Iterator[dict[int, Any]]:
  """Collects the client outputs of the round that runs in the block.

  Yields:
    Output by position of the client in the cohort, filled as clients finish; a
    client that fails has none.

  Raises:
    RuntimeError: Outside the context of `set_in_process_context`: TFF's own
      contexts drop client outputs.
  """
  current = tff.framework.get_context_stack().current
  if not isinstance(current, InProcessContext):
    raise RuntimeError(
      'Client outputs require the context of `set_in_process_context()`, found '
      f'{type(current).__name__}. Call `tff_fedfish.set_in_process_context()`.'
    )
  outputs: dict[int, Any] = {}

  def receive(index, output):
    outputs[index] = output
    if output is None:
      del outputs[index]

  options, outcome = round_options.current()
  options = dataclasses.replace(options, on_client_output=receive)
  with round_options.use_round_options(options, outcome):
    yield outputs


class InProcessContext(tff.framework.SyncContext):
  """Compiles a computation at its first call, and keeps that as long as it.

  A computation without a MapReduceForm, or with variables or tables, runs in a
  second process, by TFF's own context, with one warning. A RuntimeError is
  raised if it is a round with workers or client outputs.
  """

  def __init__(self, default_num_clients: int = 0):
    """Creates a context; for its argument see `set_in_process_context`."""
    self.default_num_clients = number = default_num_clients
    require(number >= 0, 'default_num_clients', '>= 0', number)
    # By id: TFF hashes a computation by serializing it. The reference removes
    # the entry before another computation can have the id.
    self._executions: dict[int, tuple[weakref.ref, Any]] = {}
    self._lock = threading.RLock()
    self._stock_context = None

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs `comp`; called by TFF."""
    execution = self.compile(comp)
    if execution is None:
      return self._invoke_stock(comp, arg)
    return execution(arg)

  def compile(self, comp: tff.Computation) -> Any:
    """Compiles `comp` ahead of its first call, which may take many seconds.

    Returns:
      A callable on its packed argument; None: TFF's own context runs it.
    """
    executions, key = self._executions, id(comp)
    with self._lock:
      if key not in executions:
        try:
          compiled = build_execution(comp)
        # After others, such as for want of memory, the next call tries again.
        except NO_FORM_ERRORS as error:
          compiled = None
          warnings.warn(
            f'{comp.type_signature.compact_representation()[:200]} cannot run '
            f'in process ({type(error).__name__}: {str(error)[:200]}); '
            "TFF's own context runs it in a second process.",
            stacklevel=3,
          )
        # Without the lock: any thread may clear a reference.
        reference = weakref.ref(comp, lambda _: executions.pop(key, None))
        executions[key] = reference, compiled
      return executions[key][1]

  def close(self) -> None:
    """Drops what was compiled, and ends the process of TFF's own context.

    The context can be used afterwards and then compiles again. With such a
    process this is called at exit, too, where TFF's own clean-up fails.
    """
    with self._lock:
      self._executions.clear()
      stock_context, self._stock_context = self._stock_context, None
    if stock_context is None:
      return
    atexit.unregister(self.close)
    # TFF interrupts its worker and waits: for ever in the background of a
    # script, where interrupts are ignored.
    timer = threading.Timer(_CLOSING_SECONDS, _kill_workers)
    timer.daemon = True
    timer.start()
    # The worker ends when the last reference goes, which may be in a cycle.
    del stock_context
    gc.collect()
    timer.cancel()

  def _invoke_stock(self, comp, arg):
    options, _ = round_options.current()
    is_round = tff_internals.type_contains(comp.type_signature, is_at_clients)
    if is_round and (options.workers or options.on_client_output):
      raise RuntimeError(
        "TFF's own context, in which this round runs, has no workers and no "
        'client outputs. Leave them out of its options, or build the round '
        'without variables, lookup tables and queues.'
      )
    # The local context has no secure sums; this one sums in the open.
    create = tff.backends.test.create_sync_test_cpp_execution_context
    with self._lock:
      if self._stock_context is None:
        self._stock_context = create(
          default_num_clients=self.default_num_clients
        )
        atexit.register(self.close)
      stock_context = self._stock_context
    with tff.framework.get_context_stack().install(stock_context):
      return stock_context.invoke(comp, arg)


def _kill_workers() -> None:
  for process in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.Error):
      if process.name() == 'worker_binary':
        process.kill()
