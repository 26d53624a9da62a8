"""How a cohort is divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.runtime.client_runner import divide_cohort


@pytest.mark.parametrize(
  'num_clients, num_partial_sums, expected',
  [
    (0, 1, []),
    (0, 4, []),
    (3, 1, [[0, 1, 2]]),
    # Bounds 0, 7 // 3 = 2, 14 // 3 = 4, 7.
    (7, 3, [[0, 1], [2, 3], [4, 5, 6]]),
    (2, 8, [[0], [1]]),
  ],
)
def test_by_hand(num_clients, num_partial_sums, expected):
  found = divide_cohort(num_clients, num_partial_sums)
  assert [list(part) for part in found] == expected


@given(st.integers(0, 500), st.integers(1, 40))
def test_every_client_once_in_order_in_equal_parts(num_clients, num_parts):
  parts = divide_cohort(num_clients, num_parts)
  assert [i for part in parts for i in part] == list(range(num_clients))
  sizes = {len(part) for part in parts}
  assert not sizes or max(sizes) - min(sizes) <= 1
  assert len(parts) == min(num_clients, num_parts)
