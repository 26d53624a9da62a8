"""Rounds whose barriers can be computed by hand, without TensorFlow."""

import numpy as np
import pytest

from tff_fedfish.toy.results import GRID, SUPPORTS, Round


def _round(support, local_mse, fed_avg_mse, fed_fish_mse):
  return Round(
    inputs=np.array([np.linspace(*ends, 100) for ends in SUPPORTS[support]]),
    targets=np.array([[2.0, 0.0] * 50, [-1.0] * 100]),
    errors={
      'local': np.array(local_mse),
      'fed_avg': np.array(fed_avg_mse),
      'fed_fish': np.array(fed_fish_mse),
    },
    curves={
      name: np.full_like(GRID, height)
      for name, height in (
        ('client_1', -1.5),
        ('client_2', 1.5),
        ('fed_avg', -0.5),
        ('fed_fish', 0.5),
      )
    },
  )


@pytest.fixture(scope='session')
def two_seeds():
  """Two seeds; tests must not change them.

  barriers     full                partial              none
  seed 0   A   (0.02+0.04)/2=0.03  (0.1+0.3)/2=0.2      (1+2)/2=1.5
           F   (0.01+0.01)/2=0.01  (0.2+0.4)/2=0.3      (0.5+1.5)/2=1
  seed 1   A   (0.00+0.02)/2=0.01  (0.2+0.2)/2=0.2      (0.5+0.5)/2=0.5
           F   (-0.01-0.01)/2=-0.01 (0.2+0.2)/2=0.2     (0.5+1.5)/2=1

  The best constant is 0, the mean of 1 and -1: errors (4 + 0)/2 = 2 and 1, less
  the local 0.01 and 0.02: (1.99 + 0.98)/2 = 1.485 in every round.
  """
  local = (0.01, 0.02)

  def rounds(*barriers):
    return {
      support: _round(
        support,
        local,
        *(
          [own + gap for own, gap in zip(local, gaps, strict=True)]
          for gaps in of_methods
        ),
      )
      for support, of_methods in zip(SUPPORTS, barriers, strict=True)
    }

  return (
    rounds(
      ((0.02, 0.04), (0.01, 0.01)),
      ((0.1, 0.3), (0.2, 0.4)),
      ((1.0, 2.0), (0.5, 1.5)),
    ),
    rounds(
      ((0.0, 0.02), (-0.01, -0.01)),
      ((0.2, 0.2), (0.2, 0.2)),
      ((0.5, 0.5), (0.5, 1.5)),
    ),
  )
