"""Communication in models and bytes."""

from tff_fedfish.communication import Communication, after_rounds


def test_fed_fish_uploads_two_models():
  # 3 rounds: 6 up, 3 down; 5 clients x 7 weights x 4 bytes = 140 per unit.
  found = after_rounds(3, algorithm='fed_fish', cohort_size=5, num_weights=7)
  assert found == Communication(6, 9, 840, 1260)


def test_half_the_rounds_at_the_same_uplink_cost_less_in_all():
  # The paper's comparison: FedAvg 800 rounds, FedFish 400: 800 units up for
  # both, 1,600 and 1,200 in all.
  average = after_rounds(800, algorithm='fed_avg', cohort_size=1, num_weights=1)
  fish = after_rounds(400, algorithm='fed_fish', cohort_size=1, num_weights=1)
  assert (average.uplink_units, average.total_units) == (800, 1600)
  assert (fish.uplink_units, fish.total_units) == (800, 1200)
