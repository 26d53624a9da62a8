"""Communication in models and bytes."""

from tff_fedfish.methods.method import Traffic
from tff_fedfish.run.communication import Communication, after_rounds

_AVERAGE, _FISH = Traffic(), Traffic(uplink=2)


def test_fed_fish_uploads_two_models():
  # 3 rounds: 6 up, 3 down; 5 clients x 7 weights x 4 bytes = 140 per unit.
  found = after_rounds(3, traffic=_FISH, cohort_size=5, num_weights=7)
  assert found == Communication(6, 9, 840, 1260)


def test_half_the_rounds_at_the_same_uplink_cost_less_in_all():
  # The paper's comparison: FedAvg 800 rounds, FedFish 400: 800 units up for
  # both, 1,600 and 1,200 in all.
  average = after_rounds(800, traffic=_AVERAGE, cohort_size=1, num_weights=1)
  fish = after_rounds(400, traffic=_FISH, cohort_size=1, num_weights=1)
  assert (average.uplink_units, average.total_units) == (800, 1600)
  assert (fish.uplink_units, fish.total_units) == (800, 1200)


def test_units_are_floats_only_where_they_are_not_whole():
  # 3 x 0.25 up, 3 x 1 down; 3.75 x 2 x 10 x 4 bytes = 300.
  found = after_rounds(
    3, traffic=Traffic(uplink=0.25), cohort_size=2, num_weights=10
  )
  assert found == Communication(0.75, 3.75, 60, 300)
  found = after_rounds(
    4, traffic=Traffic(uplink=0.25), cohort_size=2, num_weights=10
  )
  assert (found.uplink_units, type(found.uplink_units)) == (1, int)
