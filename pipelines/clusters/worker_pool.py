"""Runs a worker pool on a host: processes in which Beam jobs do their work.

    python -m pipelines.clusters.worker_pool --port 50000

A job with `--environment_type=EXTERNAL --environment_config=HOST:50000` asks it
for a process. Beam's own pool starts whatever `python` is first in PATH, keeps
what its processes print in a pipe that nobody reads, and leaves them behind
when it is killed.

There is no authentication: whoever reaches the port can run code. Keep it
inside a network of your own.
"""

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 10.0


def main() -> int:
  """Serves until it is interrupted or terminated."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--port', type=int, default=50000)
  parser.add_argument('--work_for', nargs=2, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.work_for:
    return _work(*arguments.work_for)
  return _serve(arguments.port)


def _serve(port):
  import grpc
  from apache_beam.portability.api import beam_fn_api_pb2 as messages
  from apache_beam.portability.api import beam_fn_api_pb2_grpc as services

  processes = {}

  class Pool(services.BeamFnExternalWorkerPoolServicer):
    def StartWorker(self, request, context):  # noqa: N802
      del context
      name, url = request.worker_id, request.control_endpoint.url
      command = [sys.executable, '-m', 'pipelines.clusters.worker_pool']
      processes[name] = subprocess.Popen([*command, '--work_for', url, name])
      print(f'Started worker {name} for {url}.', flush=True)
      return messages.StartWorkerResponse()

    def StopWorker(self, request, context):  # noqa: N802
      del context
      _end(processes.pop(request.worker_id, None))
      print(f'Stopped worker {request.worker_id}.', flush=True)
      return messages.StopWorkerResponse()

  with concurrent.futures.ThreadPoolExecutor(8) as threads:
    server = grpc.server(threads)
    services.add_BeamFnExternalWorkerPoolServicer_to_server(Pool(), server)
    try:
      server.add_insecure_port(f'[::]:{port}')
    except RuntimeError as error:
      print(f'worker_pool: `--port` {port}: {error}', file=sys.stderr)
      return 2
    server.start()
    print(f'Worker pool at port {port}.', flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
      server.wait_for_termination()
    except KeyboardInterrupt:
      return 0
    finally:
      server.stop(0)
      for process in processes.values():
        _end(process)


def _end(process):
  if process is not None:
    process.terminate()
    try:
      process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()


def _work(url, name):
  from apache_beam.runners.worker.sdk_worker import SdkHarness

  parent = os.getppid()

  def watch_parent():
    while os.getppid() == parent:
      time.sleep(_POLL_SECONDS)
    os._exit(1)

  threading.Thread(target=watch_parent, daemon=True).start()
  SdkHarness(url, worker_id=name, state_cache_size=0).run()
  return 0


if __name__ == '__main__':
  sys.exit(main())
