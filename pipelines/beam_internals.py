"""Corrections of Beam's own runner, of the version that the lock file names."""

import collections
import contextlib
import functools
import os
import shlex
import site
import subprocess
import threading
from collections.abc import Mapping

from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner import (
  execution,
  worker_handlers,
)
from google.protobuf import json_format, text_format

from tff_fedfish.data.client_ids import client_id_to_text

# Between two looks at what still waits for a lost worker.
_RETRY_SECONDS = 0.5
# For the last words of a process that has ended.
_DRAIN_SECONDS = 2.0
_MAX_WORDS = 300


class LostWorkerError(Exception):
  """A worker process of this machine ended before the job did.

  Attributes:
    has_begun: Whether it had connected to this process.
    words: Why it ended, with the last line of its standard error.
  """

  def __init__(self, has_begun: bool, words: str):
    super().__init__(words)
    self.has_begun = has_begun
    self.words = words


@functools.cache
def lock_buffers() -> None:
  """Keeps Beam's own runner from losing elements with several workers.

  A thread for each worker looks for the buffer of what it receives, makes one
  if there is none, and adds to it. Where two threads did so at once, the
  elements of one were lost.
  """
  lock = threading.Lock()
  for kind, name in (
    (execution.BundleContextManager, 'get_buffer'),
    (execution.GroupingBuffer, 'append'),
  ):
    setattr(kind, name, _locked(getattr(kind, name), lock))


def _locked(method, lock):
  @functools.wraps(method)
  def locked(*args, **kwargs):
    with lock:
      return method(*args, **kwargs)

  return locked


@functools.cache
def watch_workers() -> None:
  """Lets Beam's own runner end with its first worker process that is lost.

  It would wait for ever for one that ended before it connected.
  """
  worker_handlers.WorkerHandler.register_environment(
    python_urns.SUBPROCESS_SDK, bytes
  )(_WorkerProcess)


class _WorkerProcess(worker_handlers.GrpcWorkerHandler):
  """A worker process of this machine."""

  _lock = threading.Lock()

  def __init__(self, command, state, provision_info, grpc_server):
    super().__init__(state, provision_info, grpc_server)
    self._command = command.decode()
    self._may_end = False
    self._closed = threading.Event()

  def start_worker(self):
    options = self.provision_info.provision_info.pipeline_options
    environment = {
      **worker_environment(os.environ),
      'CONTROL_API_SERVICE_DESCRIPTOR': text_format.MessageToString(
        self.control_api_service_descriptor()
      ),
      'LOGGING_API_SERVICE_DESCRIPTOR': text_format.MessageToString(
        self.logging_api_service_descriptor()
      ),
      'PIPELINE_OPTIONS': json_format.MessageToJson(options),
      'WORKER_ID': self.worker_id,
    }
    self._process = subprocess.Popen(
      shlex.split(self._command), env=environment, stderr=subprocess.PIPE
    )
    self._last_lines = collections.deque(maxlen=20)
    self._reader = threading.Thread(target=self._read_errors, daemon=True)
    self._reader.start()
    threading.Thread(target=self._watch, daemon=True).start()

  def close(self):
    self._may_end = True
    self._closed.set()
    if not self._has_begun():
      # It would wait for its first order.
      self._process.kill()
    try:
      super().close()
    except LostWorkerError:
      self.stop_worker()

  def stop_worker(self):
    self._process.wait()

  def _has_begun(self):
    started = worker_handlers.BeamFnControlServicer.STARTED_STATE
    return self.control_conn._state == started

  def _read_errors(self):
    with self._process.stderr as lines:
      while line := lines.readline(4096):
        if line := line.decode(errors='replace').strip():
          self._last_lines.append(line)

  def _watch(self):
    code = self._process.wait()
    with self._lock:
      if self._may_end:
        return
      for worker in self._all_workers():
        worker._may_end = True
    self._reader.join(_DRAIN_SECONDS)
    error = LostWorkerError(self._has_begun(), self._describe_end(code))
    # What waits may come later, and so may a worker.
    while not self._closed.wait(_RETRY_SECONDS):
      for worker in self._all_workers():
        worker._give_up(error)

  def _all_workers(self):
    return [*self.control_handler._worker_manager._workers_by_id.values()]

  def _give_up(self, error):
    self._may_end = True
    self._process.kill()
    # Whoever waits for data does not look at the other connection.
    self.data_conn._exception = error
    # It may just be getting something new to wait for.
    with contextlib.suppress(RuntimeError):
      self.control_conn.abort(error)

  def _describe_end(self, code):
    how = f'exit code {code}' if code >= 0 else f'signal {-code}'
    words = self._last_lines[-1][-_MAX_WORDS:] if self._last_lines else ''
    # Without what a terminal would act upon, such as colours.
    words = client_id_to_text(words.encode())
    return f'{how}: {words}' if words else how


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
  """Returns the environment of a worker process that connects to this one.

  Its connections to this machine pass by any proxy, and the current directory
  is not on its path.

  Args:
    environment: That of this process.
  """
  changed = {**environment, 'PYTHONSAFEPATH': '1'}
  for names in (('no_proxy', 'NO_PROXY'), ('NO_PROXY', 'no_proxy')):
    hosts = [environment[name] for name in names if environment.get(name)]
    changed[names[0]] = ','.join([*hosts[:1], 'localhost', '127.0.0.1'])
  # Goes before the others in gRPC.
  if hosts := environment.get('no_grpc_proxy'):
    changed['no_grpc_proxy'] = f'{hosts},localhost,127.0.0.1'
  root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  if root not in site.getsitepackages():
    # A checkout that is used as it is.
    paths = [environment.get('PYTHONPATH', ''), root]
    changed['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
  return changed
