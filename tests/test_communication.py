"""Communication in models and bytes."""

from tff_fedfish.methods.parts import Traffic
from tff_fedfish.planning.communication import Communication, of_cohorts


def test_units_and_bytes_by_hand():
  # FedFish, 3 rounds: 6 up, 3 down; 5 clients x 7 weights x 4 bytes = 140.
  found = of_cohorts(Traffic(6, 3), cohort_size=5, num_weights=7)
  assert found == Communication(6, 9, 840, 1260)
  # 3 x 0.25 up, 3 x 1 down; 3.75 x 2 x 10 x 4 bytes = 300.
  found = of_cohorts(Traffic(0.75, 3), cohort_size=2, num_weights=10)
  assert found == Communication(0.75, 3.75, 60, 300)
  # Floats only where they are not whole.
  found = of_cohorts(Traffic(4 * 0.25, 4), cohort_size=2, num_weights=10)
  assert (found.uplink_units, type(found.uplink_units)) == (1, int)
