"""Beam's runner for Dask, with a task for each element and an end that is told.

    fedfish group ... --runner=pipelines.clusters.dask_runner.DaskRunner \
        --dask_client_address=host0:8786

Beam's own takes a job for done whose scheduler was lost, and runs up to 128
elements one after the other.
"""

import contextlib
import pathlib

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
        _check_scheduler_file(given.scheduler_file)
      result = super().run_pipeline(pipeline, options)
    except (OSError, ValueError, ImportError) as error:
      name, place = '--dask_client_address', given.address
      if given.scheduler_file is not None:
        name, place = '--dask_scheduler_file', given.scheduler_file
      found = 'is not given' if place is None else f'{place!r} does not'
      raise UserError(
        f'`{name}` must lead to a Dask scheduler that answers, but {found} '
        f'({error}). Start one with `python -m '
        'distributed.cli.dask_scheduler`, or name another.'
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


def _check_scheduler_file(path):
  """Raises where Dask would wait for ever, for a file to have an address."""
  match parse_json(pathlib.Path(path).read_bytes()):
    case {'address': str()}:
      return
  raise ValueError('it holds no address')
