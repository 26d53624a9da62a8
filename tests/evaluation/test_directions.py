"""Norms over all weights."""

import numpy as np

from tff_fedfish.evaluation import directions


def test_norm_is_over_all_tensors():
  # 3^2 + 4^2 + 12^2 = 13^2.
  assert directions.norm((np.array([3.0, -4.0]), np.array(12.0))) == 13
