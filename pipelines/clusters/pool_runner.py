"""A runner whose workers are in Beam's worker pools, on any number of hosts.

    fedfish group ... --runner=pipelines.clusters.pool_runner.PoolRunner \
        --worker_pools=host1:50000,host2:50000

What workers exchange goes through the job's own process, in whose memory it
must fit. A pool that does not answer for a minute ends the job, which Beam
would let wait for ever.
"""

import contextlib
import socket
import threading
import time

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import (
  fn_runner,
  worker_handlers,
)
from apache_beam.transforms.environments import ExternalEnvironment

from tff_fedfish.errors import FailedError, UserError

_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 2.0


class PoolRunnerOptions(PipelineOptions):
  """Names the pools."""

  @classmethod
  def _add_argparse_args(cls, parser):
    parser.add_argument(
      '--worker_pools',
      default='localhost:50000',
      metavar='HOST:PORT[,HOST:PORT...]',
      help='one worker is asked of each; name one twice for two workers',
    )


class PoolRunner(fn_runner.FnApiRunner):
  """Runs a job in this process, and its functions in pools elsewhere."""

  def run_pipeline(self, pipeline, options):
    """Runs the job to its end."""
    given = options.view_as(PoolRunnerOptions).worker_pools
    pools = [pool for pool in given.split(',') if pool]
    if not pools:
      raise UserError(
        '`--worker_pools` must name at least one pool as HOST:PORT, but is '
        f'{given!r}.'
      )
    self._num_workers = len(pools)
    environment = ExternalEnvironment(pools[0], {'pools': ','.join(pools)})
    proto = pipeline.to_runner_api(default_environment=environment)
    _PoolWorkerHandler.lost.clear()
    try:
      return self.run_via_runner_api(proto, options)
    except Exception as error:
      if not (lost := _PoolWorkerHandler.lost):
        raise
      raise FailedError(
        f'the worker pool at {lost[0]} has not answered for '
        f'{_PATIENCE_SECONDS:.0f} seconds, and nothing was kept. Start it '
        'again, or leave it out of `--worker_pools`, and run the job again.'
      ) from error


@worker_handlers.WorkerHandler.register_environment(
  common_urns.environments.EXTERNAL.urn, beam_runner_api_pb2.ExternalPayload
)
class _PoolWorkerHandler(worker_handlers.ExternalWorkerHandler):
  lost = []
  _closed = None

  def start_worker(self):
    pools = self._external_payload.params['pools'].split(',')
    if not pools[0]:
      # Of another runner in this process.
      super().start_worker()
      return
    # Beam numbers its workers through all jobs of a process.
    number = int(self.worker_id.rpartition('_')[2])
    self._pool = pools[number % len(pools)]
    self._external_payload.endpoint.url = self._pool
    try:
      super().start_worker()
    except grpc.RpcError as error:
      raise UserError(
        '`--worker_pools` must name pools that answer, but '
        f'{self._pool} does not ({error.code().name}). Start it there '
        'with `python -m apache_beam.runners.worker.worker_pool_main '
        '--service_port=PORT`.'
      ) from error
    self._closed = threading.Event()
    threading.Thread(target=self._watch, daemon=True).start()

  def close(self):
    if self._closed:
      self._closed.set()
    super().close()

  def _watch(self):
    host, _, port = self._pool.rpartition(':')
    answered = time.monotonic()
    while not self._closed.wait(_POLL_SECONDS):
      with contextlib.suppress(OSError):
        socket.create_connection((host, int(port)), _POLL_SECONDS).close()
        answered = time.monotonic()
      if time.monotonic() - answered > _PATIENCE_SECONDS:
        self.lost.append(self._pool)
        # Wakes whoever waits for the worker, with an error.
        self.data_conn.close()
        self.control_conn.close()
        return
