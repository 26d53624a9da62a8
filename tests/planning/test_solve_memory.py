"""Models that a server's solve holds: by hand, and against a real solve."""

import peak_memory
import planned_configs
import pytest
import server_solves

from models.model_shapes import num_parameters
from tff_fedfish.planning import memory


def _models(config, num_clients):
  """Returns the models as a number of weights."""
  models = config.method.solve_models(config, num_clients)
  return models * num_parameters(config.model_shape())


@pytest.mark.parametrize(
  ('solver', 'num_weights'),
  [
    # Factors of LeNet, 131,965 in FedFisher's appendix. A of the first hidden
    # layer, 256^2, is more than 2 * 256 * 120.
    ('adam', 9 * 44_190 + 7 * (131_965 + 65_536)),
    # Its A and G, and A again.
    ('conjugate_gradient', 6 * 44_190 + 7 * (65_536 + 14_400 + 65_536)),
  ],
)
def test_k_fac_by_hand(solver, num_weights):
  config = planned_configs.shipped(
    'fashion_mnist_one_shot', algorithm__solver=solver
  )
  assert _models(config, 7) == pytest.approx(num_weights)


def test_reg_mean_by_hand():
  config = planned_configs.shipped(
    'fashion_mnist_one_shot', algorithm__name='reg_mean'
  )
  # Gram matrices of the dense layers' inputs, 256, 120 and 84.
  grams = 65_536 + 14_400 + 7_056
  expected = 9 * 44_190 + 2 * grams + 12 * 65_536
  assert _models(config, 7) == pytest.approx(expected)


def test_dense_by_hand():
  config = planned_configs.shipped(
    'fashion_mnist_one_shot',
    algorithm__name='dense',
    algorithm__num_outer_epochs=3,
  )
  # LeNet convolves to 24 * 24 * 6 and 8 * 8 * 16 values; the generator has
  # 128 channels of 7 * 7, 128 of 14 * 14, 64 of 28 * 28.
  generator = 6_272 + 25_088 + 50_176
  per_image = 5 * generator + 2 * 6 * (3_456 + 1_024) + 3 * 3 * 784
  assert _models(config, 5) == pytest.approx(13 * 44_190 + 256 * per_image)


_BEFORE = """
import sys
sys.path.insert(0, 'tests')
import server_solves
from tff_fedfish.runtime.in_process_context import set_in_process_context
set_in_process_context()
name, directory, *settings = sys.argv[1:]
settings = dict(text.split('=') for text in settings)
config, uploads = server_solves.open_uploads(name, directory, settings)
"""
_SMALL = dict(algorithm__num_solver_steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    ('fashion_mnist_one_shot', dict(algorithm__solver='adam', **_SMALL)),
    (
      'fashion_mnist_one_shot',
      dict(algorithm__solver='conjugate_gradient', **_SMALL),
    ),
    (
      'fashion_mnist_one_shot',
      dict(
        algorithm__name='dense',
        algorithm__num_outer_epochs=2,
        algorithm__num_generator_steps=3,
      ),
    ),
  ],
  ids=['adam', 'conjugate_gradient', 'dense'],
)
def test_a_solve_over_ten_clients_takes_what_is_planned(
  name, settings, tmp_path
):
  settings = settings | {'cohorts__cohort_size': 10}
  config = planned_configs.shipped(name, **settings)
  server_solves.write_uploads(config, tmp_path)
  found = peak_memory.peak_above_idle(
    _BEFORE,
    'server_solves.solve(config, uploads)',
    name,
    tmp_path,
    *(f'{key}={value}' for key, value in settings.items()),
  )
  (process,) = memory.process_memory(config)
  # Idle, these are there.
  idle = memory.PROCESS_BYTES + 4 * num_parameters(config.model_shape())
  planned = process.peak_bytes - idle
  print(f'{found / 2**20:.0f} MiB, planned {planned / 2**20:.0f} MiB')
  assert 1 / 1.5 < (idle + found) / process.peak_bytes < 1.15
