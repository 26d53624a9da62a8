"""Whether runs fit into memory side by side."""

from collections.abc import Iterable

from tff_fedfish import environment
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import memory
from tff_fedfish.planning.units import format_bytes


def require_memory(configs: Iterable[TrainConfig], num_jobs: int) -> None:
  """Raises UserError unless any `num_jobs` of the runs fit side by side.

  A single run is not refused: whether to try it is for the user to say.

  Args:
    configs: The runs that are to come.
    num_jobs: How many of them at a time.
  """
  sizes = sorted(map(memory.run_bytes, configs), reverse=True)
  num_together = min(num_jobs, len(sizes))
  available = environment.memory_bytes()['available']
  needed = sum(sizes[:num_together])
  if num_together < 2 or needed <= available:
    return
  num_fitting = max(
    (n for n in range(1, num_together) if sum(sizes[:n]) <= available),
    default=1,
  )
  raise UserError(
    f'`--jobs` is {num_jobs}, but {num_together} runs at once take up to '
    f'{format_bytes(needed)} (the largest {format_bytes(sizes[0])}), and '
    f'{format_bytes(available)} of memory are available. Set it to '
    f'{num_fitting}.'
  )
