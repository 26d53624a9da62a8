"""Bytes per process by hand: 180 weights, W = 720."""

import planned_configs
import pytest

from tff_fedfish.planning import memory

_PROCESS = {'process': 925_000_000 + 10_000_000}
_CLIENT = {'client': 5}


@pytest.fixture(autouse=True)
def _known_client(monkeypatch):
  monkeypatch.setattr(
    memory, 'moments_of_client', lambda config: {'client work': _CLIENT}
  )


def test_one_process_by_hand():
  # State: W and Adam's 2 W.
  # FedFish sums 2 W. The new state is 3 W beside the old; the largest tensor
  # is an MLP kernel, 3 * 12 * 4 = 144 bytes.
  held = _PROCESS | {
    'weights': 720,
    'optimizer state': 1440,
    'sums of earlier clients': 1440,
  }
  (found,) = memory.of_config(planned_configs.by_hand())
  assert found.name == 'the process'
  assert found.moments == {
    'client work': held | _CLIENT,
    'server step': held | {'new weights and state': 2160, 'update': 144},
  }
  assert found.peak_moment == 'server step'
  assert found.peak_bytes == 935_000_000 + 720 + 1440 + 1440 + 2304


def test_fed_avg_and_server_sgd_by_hand():
  config = planned_configs.by_hand(
    algorithm__name='fed_avg', server__optimizer='sgd'
  )
  (found,) = memory.of_config(config)
  # No moments; one sum of W.
  assert found.moments['server step'] == _PROCESS | {
    'weights': 720,
    'sums of earlier clients': 720,
    'new weights and state': 720,
    'update': 144,
  }


def test_state_of_server_optimizers_by_hand():
  for settings, num_moments in (
    ({'optimizer': 'sgd', 'momentum': 0.9}, 1),
    ({'optimizer': 'adagrad'}, 1),
    ({'optimizer': 'yogi'}, 2),
    ({'optimizer': 'adamw'}, 2),
  ):
    (found,) = memory.of_config(
      planned_configs.by_hand(
        **{f'server__{name}': value for name, value in settings.items()}
      )
    )
    parts = found.moments['server step']
    assert parts['optimizer state'] == num_moments * 720
    assert parts['new weights and state'] == (1 + num_moments) * 720


def test_several_partial_sums_in_one_process():
  config = planned_configs.by_hand(
    algorithm__name='fed_avg', engine__num_partial_sums=3
  )
  (found,) = memory.of_config(config)
  held = _PROCESS | {'weights': 720, 'optimizer state': 1440}
  # One sum is W. At a client there is that of its part and that of the parts
  # before; two are merged into a third; the step needs one.
  one = {'sums of earlier clients': 720}
  assert found.moments == {
    'client work': held | one | {'partial sums': 720} | _CLIENT,
    'merge of partial sums': held | {'partial sums': 2160},
    'server step': held | one | {'new weights and state': 2160, 'update': 144},
  }


def test_barrier_rounds_hold_two_states_beside_a_client():
  config = planned_configs.by_hand(evaluation__barrier_every_num_rounds=5)
  (found,) = memory.of_config(config)
  held = _PROCESS | {
    'weights': 720,
    'optimizer state': 1440,
    'new weights and state': 2160,
  }
  assert found.moments['barrier, client work'] == held | _CLIENT
  # FedFish's update is two models.
  assert found.moments['barrier, trained client'] == held | {
    'client weights': 720,
    "client's update": 1440,
  }
  config = planned_configs.by_hand(
    evaluation__barrier_every_num_rounds=5, engine__kind='ray'
  )
  driver, worker = memory.of_config(config)
  assert 'barrier, client work' in driver.moments
  assert 'barrier, client work' not in worker.moments


def test_driver_and_worker_by_hand():
  config = planned_configs.by_hand(engine__kind='ray', engine__num_workers=2)
  driver, worker = memory.of_config(config)
  at_driver = _PROCESS | {
    'weights': 720,
    'optimizer state': 1440,
  }
  assert driver.name == 'the driver'
  assert driver.moments == {
    'broadcast': at_driver | {'broadcast weights': 1440},
    'merge of partial sums': at_driver
    | {'broadcast weights': 720, 'partial sums': 4 * 1440},
    'server step': at_driver
    | {
      'broadcast weights': 720,
      'partial sums': 1440,
      'new weights and state': 2160,
      'update': 144,
    },
  }
  assert driver.peak_moment == 'merge of partial sums'
  at_worker = _PROCESS | {
    'broadcast weights': 1440,
    'sums of earlier clients': 1440,
  }
  assert worker.name == 'each worker'
  assert worker.moments == {
    'client work': at_worker | _CLIENT,
    'sending of the sum': at_worker | {'partial sums': 2880},
  }


def test_only_layers_that_are_written_out_make_the_graph_larger():
  settings = dict(model__num_layers=9, model__layer_loop='unrolled')
  (unrolled,) = memory.of_config(planned_configs.by_hand(**settings))
  settings['model__layer_loop'] = 'foldl'
  (looped,) = memory.of_config(planned_configs.by_hand(**settings))
  assert unrolled.peak_bytes - looped.peak_bytes == 90_000_000
