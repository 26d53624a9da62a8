"""Clusters that group: Spark, Dask; with a worker on each host.

The driver and the master are on the first host. docs/clusters.md has the same
commands.
"""

import os
import pathlib
import sys
from collections.abc import Sequence

from cluster import grouping
from cluster.hosts import Host, Process

_VENV = grouping.ROOT / '.venv-cluster'
ENVIRONMENT = {
  'PYTHONPATH': f'{grouping.ENVIRONMENT["PYTHONPATH"]}:{_VENV}',
  'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
}
_MEGABYTES = 2000


class Engine:
  """An engine that runs on hosts."""

  def __init__(self, name: str, hosts: Sequence[Host]):
    """Starts it, and waits until all of it is there.

    Args:
      name: 'spark' or 'dask'.
      hosts: The driver's host, and those of the workers.
    """
    self.name, self.hosts = name, hosts
    self.flags: tuple[str, ...] = ()
    """Options of `fedfish group`."""
    self.workers: list[Process] = []
    """The process that was started on each host but the first."""
    self._driver, *self._others = hosts
    getattr(self, f'_start_{name}')()

  def group(
    self, kind: str, pattern: str, output: pathlib.Path, *flags: str
  ) -> Process:
    """Starts a job."""
    command = grouping.command(kind, pattern, output, *self.flags, *flags)
    return self._start(self._driver, f'{self.name}_job', *command)

  def busy(self, host: Host) -> list[int]:
    """Returns the ids of the processes that do a job's work on a host."""
    text = {
      'spark': 'CoarseGrainedExecutorBackend',
      'dask': 'multiprocessing',
    }
    return [process.pid for process in host.processes(text[self.name])]

  def _start_spark(self):
    master = f'spark://{self._driver.name}:7077'
    self.flags = (
      '--runner=pipelines.clusters.spark_runner.SparkRunner',
      f'--spark_master={master}',
    )
    arguments = ('--host', self._driver.name, '--port', '7077')
    process = self._spark(self._driver, 'master.Master', *arguments)
    process.wait_for('Starting Spark master at', 60)
    for host in self._others:
      arguments = (master, '--host', host.name, '--cores', '1')
      arguments += ('--memory', f'{_MEGABYTES}m')
      self.workers.append(self._spark(host, 'worker.Worker', *arguments))
    for worker in self.workers:
      worker.wait_for('Successfully registered with master', 60)

  def _start_dask(self):
    address = f'{self._driver.name}:8786'
    self.flags = (
      '--runner=pipelines.clusters.dask_runner.DaskRunner',
      f'--dask_client_address={address}',
    )
    module = 'distributed.cli.dask_scheduler'
    arguments = ('--host', self._driver.name, '--port', '8786')
    process = self._python(self._driver, module, *arguments, '--no-dashboard')
    process.wait_for('Scheduler at:', 60)
    for host in self._others:
      arguments = (address, '--host', host.name, '--no-dashboard')
      arguments += ('--nworkers', '1', '--nthreads', '1')
      arguments += ('--memory-limit', f'{_MEGABYTES}MB')
      module = 'distributed.cli.dask_worker'
      self.workers.append(self._python(host, module, *arguments))
    for worker in self.workers:
      worker.wait_for('Registered to:', 60)

  def _spark(self, host, role, *arguments):
    program = _VENV / 'bin' / 'spark-class'
    name = f'org.apache.spark.deploy.{role}'
    # Where its logs go, and what it shuffles.
    work = f'{host.tmp}/spark'
    environment = {'SPARK_WORKER_DIR': work, 'SPARK_LOCAL_DIRS': work}
    command = (str(program), name, *arguments)
    return self._start(host, role, *command, **environment)

  def _python(self, host, module, *arguments):
    name = module.rpartition('.')[2]
    return self._start(host, name, sys.executable, '-m', module, *arguments)

  def _start(self, host, log, *command, **environment):
    environment = ENVIRONMENT | environment
    return host.start(command, log, cwd=grouping.ROOT, env=environment)
