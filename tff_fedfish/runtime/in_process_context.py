"""A TFF execution context that runs `tff.learning` processes in this process.

TFF's default context executes in a second process, into which every value is
copied and whose memory grows with every round. Here a round is split into its
MapReduceForm, plain TensorFlow functions that this process calls.
"""

import atexit
import contextlib
import gc
import threading
import warnings
from typing import Any

import psutil
import tensorflow_federated as tff

from tff_fedfish.runtime import placement
from tff_fedfish.runtime.execution import build_execution

# TFF's worker ends at once when it is interrupted, or not at all.
_CLOSING_SECONDS = 10
_WORKER_NAME = 'worker_binary'


def set_in_process_context() -> 'InProcessContext':
  """Makes TFF computations run in this process, in the calling thread.

  Returns:
    The context, the one already set if there is one, with all that it has
    compiled. Other threads must install it themselves:
    `with tff.framework.get_context_stack().install(context): ...`.
  """
  current = tff.framework.get_context_stack().current
  if isinstance(current, InProcessContext):
    return current
  placement.share_accelerators()
  context = InProcessContext()
  tff.framework.set_default_context(context)
  return context


class InProcessContext(tff.framework.SyncContext):
  """Compiles a computation at its first call and keeps what it compiled.

  A computation that has no MapReduceForm runs in TFF's own context, which
  starts a process of its own then, with one warning that names it.
  """

  def __init__(self):
    """Creates a context that has compiled nothing yet."""
    # By identity: TFF hashes a computation by serializing it. The computation
    # is kept, so that its id is not given to another one.
    self._executions: dict[int, tuple[tff.Computation, Any]] = {}
    self._lock = threading.RLock()
    self._stock_context = None

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs `comp`; called by TFF."""
    with self._lock:
      if id(comp) not in self._executions:
        self._executions[id(comp)] = (comp, self._compile(comp))
      execution = self._executions[id(comp)][1]
    if execution is None:
      return self._invoke_stock(comp, arg)
    return execution(arg)

  def close(self) -> None:
    """Ends the process of TFF's own context, if one was started.

    Called at exit, too: TFF's clean-up fails once the interpreter shuts down,
    and its worker would be left behind.
    """
    with self._lock:
      self._stock_context = None
    # TFF interrupts its worker and waits for it, which ignores that where this
    # process was started in the background of a script.
    timer = threading.Timer(_CLOSING_SECONDS, _kill_workers)
    timer.daemon = True
    timer.start()
    # The worker ends when the last reference, which is in a cycle, goes.
    gc.collect()
    timer.cancel()

  def _compile(self, comp):
    try:
      return build_execution(comp)
    # TFF has no common class for "has no MapReduceForm".
    except Exception as error:  # pylint: disable=broad-exception-caught
      warnings.warn(
        f'{comp.type_signature.compact_representation()[:200]} cannot run in '
        f"process ({type(error).__name__}: {str(error)[:200]}); TFF's own "
        'context runs it in a second process.',
        stacklevel=3,
      )
      return None

  def _invoke_stock(self, comp, arg):
    with self._lock:
      if self._stock_context is None:
        self._stock_context = (
          tff.backends.native.create_sync_local_cpp_execution_context()
        )
        atexit.register(self.close)
    with tff.framework.get_context_stack().install(self._stock_context):
      return self._stock_context.invoke(comp, arg)


def _kill_workers() -> None:
  for process in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.Error):
      if process.name() == _WORKER_NAME:
        process.kill()
