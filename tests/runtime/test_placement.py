"""Rounds run on an accelerator where there is one.

TensorFlow's logical devices stand for one: a second CPU that nothing is placed
on by itself. They are fixed when TensorFlow starts, so in a process of its own.
"""

import pathlib
import subprocess
import sys

import pytest

_PROGRAM = """
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
import linear_models
from tff_fedfish import build_fed_fish, set_in_process_context
from tff_fedfish.runtime import placement

set_in_process_context()
process = build_fed_fish(
  linear_models.linear_model(3),
  client_optimizer=linear_models.sgd(0.1),
  server_optimizer=linear_models.adam(0.1),
)
data = [linear_models.batches(np.eye(3), [1, -2, 3], 2) for _ in range(2)]


def devices(value):
  return {t.device[-5:] for t in tf.nest.flatten(value) if tf.is_tensor(t)}


expected = process.next(process.initialize(), data)
assert placement.accelerator() is None
print(devices(expected.state))

placement.accelerator = lambda: '/device:CPU:1'
found = process.next(process.initialize(), data)
print(devices(process.next(found.state, data).state))
for one, other in zip(
  tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
):
  np.testing.assert_array_equal(one, other)
print('equal')
"""


@pytest.mark.slow
def test_state_stays_on_the_accelerator():
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    cwd=root,
    env={'PYTHONPATH': f'{root}:{root}/tests', 'TF_CPP_MIN_LOG_LEVEL': '3'},
    capture_output=True,
    text=True,
    stdin=subprocess.DEVNULL,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.split('\n') == ["{'CPU:0'}", "{'CPU:1'}", 'equal', '']
