"""Bytes sent, by hand, for 180 weights (720 bytes), 3 clients and 7 rounds."""

import planned_configs
import pytest

from tff_fedfish.planning import plan


def test_in_process_by_hand():
  found = plan.traffic(planned_configs.by_hand())
  assert found == plan.Traffic(
    round_uplink_bytes=3 * 2 * 720,
    round_downlink_bytes=3 * 720,
    run_uplink_bytes=7 * 3 * 2 * 720,
    run_downlink_bytes=7 * 3 * 720,
    num_partial_sums=1,
    num_broadcasts=0,
    round_broadcast_bytes=0,
    round_partial_sum_bytes=0,
  )


def test_fed_avg_sends_one_model_up():
  config = planned_configs.by_hand(algorithm__name='fed_avg')
  assert plan.traffic(config).round_uplink_bytes == 3 * 720


@pytest.mark.parametrize(
  ('settings', 'num_broadcasts', 'num_partial_sums'),
  [
    # One machine, a part for each of 3 clients.
    ({}, 1, 3),
    ({'engine__num_partial_sums': 2}, 1, 2),
    # On a cluster each worker may be on a machine of its own.
    ({'engine__ray_address': 'auto', 'engine__num_workers': 2}, 2, 3),
  ],
)
def test_between_processes_by_hand(settings, num_broadcasts, num_partial_sums):
  config = planned_configs.by_hand(engine__kind='ray', **settings)
  found = plan.traffic(config)
  assert found.num_broadcasts == num_broadcasts
  assert found.round_broadcast_bytes == num_broadcasts * 720
  assert found.num_partial_sums == num_partial_sums
  # FedFish's two sums.
  assert found.round_partial_sum_bytes == num_partial_sums * 2 * 720
