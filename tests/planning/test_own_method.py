"""A plan follows the declaration of a method of one's own, by hand.

The models of `planned_configs.by_hand` have 180 weights, W = 720. The method
`own_methods.noisy_mean` holds two models more than FedAvg and sums one more.
"""

import json

import planned_configs
import pytest

from tff_fedfish.cli.main import main
from tff_fedfish.planning import client_steps, flops, memory

_OWN = {'algorithm__name': 'own_methods.noisy_mean'}
_FED_AVG = {'algorithm__name': 'fed_avg'}


def _noisy(num_passes=1, **settings):
  return planned_configs.by_hand(
    **_OWN, algorithm__num_passes=num_passes, **settings
  )


@pytest.mark.parametrize('num_passes', [0, 1])
def test_a_run_takes_what_the_method_declares(num_passes):
  # A server step of SGD takes less than client work.
  plain = planned_configs.by_hand(**_FED_AVG, server__optimizer='sgd')
  own = _noisy(num_passes, server__optimizer='sgd')
  # One more sum; two more models, and half of them idle with the allocator.
  growth = 720 + 2 * 720 + 720
  assert memory.run_bytes(own) - memory.run_bytes(plain) == growth


def test_a_run_with_images_takes_what_the_method_declares():
  plain, own = (
    planned_configs.shipped('mnist_by_writer', **name, server__optimizer='sgd')
    for name in (_FED_AVG, _OWN)
  )
  # The model has 1,199,882 weights.
  growth = 3 * 4 * 1_199_882
  assert memory.run_bytes(own) - memory.run_bytes(plain) == growth


@pytest.mark.parametrize('num_passes', [0, 1])
def test_work_follows_the_declaration(num_passes):
  config = _noisy(num_passes)
  # 2 local epochs of 3 steps of each of 3 clients.
  assert client_steps.of_config(config).num_passes == 2 + num_passes
  count = flops.of_round(config)
  # As FedFish's pass, see test_flops.py; delta 1, and a product and a sum of 2.
  assert count.pass_after_training == num_passes * 15 * (1176 + 2448)
  assert count.client_sums == 3 * 5 * 180


def test_command(tmp_path, capsys):
  output = tmp_path / 'plan.json'
  code = main(
    ['plan', '--config', 'configs/demo.py', '--no_timing']
    + ['--config.algorithm.name=own_methods.noisy_mean']
    + ['--config.cohorts.cohort_size=5', '--output', str(output)]
  )
  out, err = capsys.readouterr()
  assert (code, err) == (0, '')
  assert 'Peak memory of the process: ' in out
  plan = json.loads(output.read_text())
  # 1.5 and 3 models of float32, for 5 clients.
  num_weights = plan['num_weights']
  assert plan['traffic']['round_uplink_bytes'] == 30 * num_weights
  assert plan['traffic']['round_downlink_bytes'] == 60 * num_weights
