"""Models that a server's solve holds: by hand, and against a real solve."""

import peak_memory
import planned_configs
import pytest
import server_solves

from models.model_shapes import num_parameters
from tff_fedfish.planning import memory

_SERVER = dict(server__optimizer='sgd', server__learning_rate=1.0)


def _models(config, num_clients):
  """Returns the models as a number of weights."""
  models = config.method.solve_models(config, num_clients)
  return models * num_parameters(config.model_shape())


@pytest.mark.parametrize(
  ('solver', 'num_weights'),
  [
    # Factors: embeddings 5 + 9, 12; norms 6 each, 18; query, key and value
    # share A, 16 + 3 * 9; output 16 + 9; MLP 16 + 144 and 169 + 9; head
    # 9 + 5. In all 14 + 12 + 18 + 43 + 25 + 160 + 178 + 14 = 464.
    # Of the MLP's second layer A, 169, is more than 2 * 13 * 3.
    ('adam', 9 * 180 + 7 * (464 + 169)),
    ('conjugate_gradient', 6 * 180 + 7 * (178 + 169)),
  ],
)
def test_k_fac_by_hand(solver, num_weights):
  config = planned_configs.by_hand(
    algorithm__name='fed_fisher', algorithm__solver=solver, **_SERVER
  )
  assert _models(config, 7) == pytest.approx(num_weights)


def test_reg_mean_by_hand():
  config = planned_configs.by_hand(algorithm__name='reg_mean', **_SERVER)
  # Gram matrices of the attention's input and output and of the MLP's layers:
  # 9 + 9 + 9 + 144.
  assert _models(config, 7) == pytest.approx(9 * 180 + 2 * 171 + 12 * 144)


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


def test_a_solve_for_350m():
  settings = dict(
    model__preset='350m', algorithm__name='fed_fisher', cohorts__cohort_size=10
  )
  settings |= _SERVER | {'server__epsilon': 1e-7}
  config = planned_configs.shipped(
    'c4_1_5b', algorithm__solver='conjugate_gradient', **settings
  )
  assert memory.run_bytes(config) < 24 * 2**30
  with pytest.raises(Exception, match='37.6 GiB, beyond') as error:
    planned_configs.shipped('c4_1_5b', **settings)
  assert len(str(error.value).splitlines()) == 1
  assert 'use conjugate_gradient, which goes layer by layer' in str(error.value)


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
_SMALL = dict(training__start_from='None', algorithm__num_solver_steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    ('debian_one_shot', dict(algorithm__solver='adam', **_SMALL)),
    ('debian_one_shot', dict(algorithm__solver='conjugate_gradient', **_SMALL)),
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
  server_solves.write_uploads(config, tmp_path / 'round_00000001')
  found = peak_memory.peak_above_idle(
    _BEFORE,
    'server_solves.solve(config, uploads)',
    name,
    tmp_path / 'round_00000001',
    *(f'{key}={value}' for key, value in settings.items()),
  )
  (process,) = memory.of_config(config)
  parts = dict(process.moments['server solve'])
  # Idle, these are there.
  idle = parts.pop('process') + parts.pop('weights')
  parts.pop('images', None)
  planned = sum(parts.values())
  print(f'{found / 2**20:.0f} MiB, planned {planned / 2**20:.0f} MiB')
  assert 1 / 1.5 < (idle + found) / (idle + planned) < 1.15
