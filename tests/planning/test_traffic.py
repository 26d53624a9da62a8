"""Bytes sent, by hand, for 180 weights (720 bytes), 3 clients and 7 rounds."""

import math

import planned_configs
import pytest

from tff_fedfish.planning import memory, plan


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
    largest_message_bytes=0,
  )


def test_fed_avg_sends_one_model_up():
  config = planned_configs.by_hand(algorithm__name='fed_avg')
  assert plan.traffic(config).round_uplink_bytes == 3 * 720


@pytest.mark.parametrize(
  ('settings', 'models'),
  [
    ({'fisher_power': 0.5}, 2),
    # w delta, too.
    ({'plain_mean_fraction': 0.5}, 3),
    ({'fisher_power': 0.0}, 1),
    ({'plain_mean_fraction': 1.0}, 1),
    # The embedding, 15 of the 180 weights, once; the other 165 twice.
    ({'plain_mean_tensors': 'logits'}, (15 + 165 * 2) / 180),
    (
      {'plain_mean_tensors': 'logits', 'plain_mean_fraction': 0.5},
      (15 + 165 * 3) / 180,
    ),
    ({'plain_mean_tensors': 'logits', 'fisher_power': 0.0}, 1),
  ],
)
def test_sums_of_a_mixed_mean(settings, models):
  config = planned_configs.by_hand(
    **{f'algorithm__{name}': value for name, value in settings.items()}
  )
  assert config.method.traffic(config).uplink == pytest.approx(models)
  assert plan.traffic(config).round_uplink_bytes == round(3 * models * 720)
  columns = [column.name for column in config.method.columns(config)]
  assert bool(columns) == (models != 1)
  # A plan may count the embedding as often as the others.
  assert memory.models_summed(config) == math.ceil(models)


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
  assert found.largest_message_bytes == 2 * 720


def test_checkpoint_by_hand():
  config = planned_configs.by_hand()
  # Weights and Adam's two moments.
  found = plan.plan_round(config, timing=False)
  assert found.checkpoint_bytes == 3 * 720
