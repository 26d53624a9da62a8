"""Beam's runner for Dask, with a task for each element and an end that is told.

    fedfish group ... --runner=pipelines.clusters.dask_runner.DaskRunner \
        --dask_client_address=host0:8786

Beam's own takes a job for done whose scheduler was lost, and runs up to 128
elements one after the other.
"""

import contextlib
import pathlib
import sys
import time

from apache_beam.runners.dask import dask_runner

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.files import parse_json


class DaskRunner(dask_runner.DaskRunner):
  """Runs a job on a Dask cluster, to its end."""

  def run_pipeline(self, pipeline, options):
    """Runs the job to its end."""
    given = options.view_as(dask_runner.DaskOptions)
    if given.npartitions is None and given.partition_size is None:
      given.partition_size = 1
    try:
      if given.scheduler_file is not None:
        _wait_for_address(given.scheduler_file)
      result = super().run_pipeline(pipeline, options)
    except (OSError, ValueError, ImportError) as error:
      name, place, more = '--dask_client_address', given.address, ''
      if given.scheduler_file is not None:
        name, place = '--dask_scheduler_file', given.scheduler_file
        more = ' --scheduler-file FILE'
      found = 'is not given' if place is None else f'{place!r} does not'
      raise UserError(
        f'`{name}` must lead to a Dask scheduler that answers, but {found} '
        f'({error}). Start one with `python -m distributed.cli.dask_scheduler'
        f'{more}`, or name another.'
      ) from error
    result.wait_until_finish()
    if any(future.status != 'finished' for future in result.futures):
      # Or it would try to, for a minute, when the process ends.
      with contextlib.suppress(Exception):
        result.client.close(timeout=1)
      raise FailedError(
        f'the Dask scheduler at {given.address} was lost, and nothing was '
        'kept. Start it and its workers again, and run the job again.'
      )
    return result


def _wait_for_address(path):
  """Waits, as Dask does, until a scheduler has written its file; says so."""
  file, is_said = pathlib.Path(path), False
  # A file that is being written is empty at first.
  while not (file.exists() and file.stat().st_size):
    if not is_said:
      print(f'Waiting for the scheduler file {path}', file=sys.stderr)
    is_said = True
    time.sleep(0.1)
  match parse_json(file.read_bytes()):
    case {'address': str()}:
      return
  # Dask would wait for it for ever.
  raise ValueError('it holds no address')
