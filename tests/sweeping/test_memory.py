"""How many runs fit into memory side by side."""

import planned_configs
import pytest

from tff_fedfish import environment
from tff_fedfish.errors import UserError
from tff_fedfish.planning import memory as planned
from tff_fedfish.sweeping.jobs import require_memory

_GIB = 2**30


@pytest.fixture
def machine(monkeypatch):
  """Sets the memory that is available, and what each run takes; in GiB."""

  def set_up(available, sizes):
    monkeypatch.setattr(
      environment,
      'memory_bytes',
      lambda: {'total': 99 * _GIB, 'available': available * _GIB},
    )
    monkeypatch.setattr(planned, 'run_bytes', lambda size: size * _GIB)
    return sizes

  return set_up


def test_the_largest_ones_must_fit(machine):
  sizes = machine(9, [1, 4, 2, 3])
  # 4 + 3 + 2 = 9.
  require_memory(sizes, 3)
  with pytest.raises(UserError) as error:
    require_memory(sizes, 4)
  assert str(error.value) == (
    '`--jobs` is 4, but 4 runs at once take up to 10.0 GiB (the largest 4.00 '
    'GiB), and 9.00 GiB of memory are available. Set it to 3.'
  )


def test_no_more_than_there_are_runs(machine):
  require_memory(machine(4, [2, 2]), 100)
  require_memory(machine(4, []), 2)


def test_one_run_is_never_refused(machine):
  require_memory(machine(1, [2, 2]), 1)
  require_memory(machine(1, [2]), 5)
  with pytest.raises(UserError, match='Set it to 1.'):
    require_memory(machine(1, [2, 2]), 2)


def test_all_processes_of_a_run_count():
  config = planned_configs.by_hand()
  [process] = planned.process_memory(config)
  assert planned.run_bytes(config) == process.peak_bytes
  config = planned_configs.by_hand(engine__kind='ray', engine__num_workers=3)
  driver, worker = planned.process_memory(config)
  expected = driver.peak_bytes + 3 * worker.peak_bytes
  assert planned.run_bytes(config) == expected
  # On a cluster the workers are elsewhere.
  config = planned_configs.by_hand(
    engine__kind='ray', engine__num_workers=3, engine__ray_address='auto'
  )
  assert planned.run_bytes(config) == driver.peak_bytes
