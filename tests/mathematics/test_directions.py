"""Cosine and ratio of the norms of two directions, by hand."""

import numpy as np
import pytest

from tff_fedfish.evaluation import directions


def test_directions_by_hand():
  first = (np.array([3.0, 0.0]), np.array(4.0))
  second = (np.array([0.0, 5.0]), np.array(12.0))
  # Norms 5 and 13; the product is 48.
  assert directions.cosine(first, second) == pytest.approx(48 / 65)
  assert directions.norm_ratio(first, second) == pytest.approx(5 / 13)
  zero = (np.zeros(2), np.array(0.0))
  assert directions.cosine(first, zero) == 0
  assert directions.norm_ratio(first, zero) == 0
