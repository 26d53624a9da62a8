"""Means of a cohort's deltas and their measures, worked out by hand."""

import dataclasses

import numpy as np
import pytest

from tff_fedfish.laboratory.cohort_means import Cohort
from tff_fedfish.laboratory.weightings import PLAIN_MEAN, Weighting


@dataclasses.dataclass
class _Client:
  weight: float
  delta: tuple
  diagonal: tuple
  num_batches: int = 1


def _tensor(*values):
  return np.array(values, np.float32)


# Two clients of weight 1 and 3, two tensors.
_FIRST = _Client(
  1.0, (_tensor(2, 0, 4), _tensor(4)), (_tensor(9, 1, 0), _tensor(4))
)
_SECOND = _Client(
  3.0, (_tensor(-2, 4, 8), _tensor(0)), (_tensor(1, 1, 0), _tensor(4))
)


def _cohort(clients=(_FIRST, _SECOND), makes_logits=()):
  return Cohort(clients, relative_floor=0.0, makes_logits=makes_logits)


def _assert_mean(weighting, expected, **options):
  found = np.concatenate(_cohort(**options).mean(weighting))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


class TestMean:
  def test_plain(self):
    # (2 - 6) / 4, 12 / 4, (4 + 24) / 4; 4 / 4.
    _assert_mean(PLAIN_MEAN, [-1, 3, 7, 1])
    _assert_mean(Weighting(plain_mean_fraction=1.0), [-1, 3, 7, 1])

  def test_weighed_by_the_diagonal(self):
    # (9 x 2 - 3 x 2) / 12, 3 x 4 / 4, no mass; 4 x 4 / (4 + 12).
    _assert_mean(Weighting(), [1, 3, 0, 1])

  def test_weighed_by_its_root_and_mixed(self):
    # Roots 3 and 1: (3 x 2 - 3 x 2) / 6 = 0; a half of it and of the plain.
    weighting = Weighting(fisher_power=0.5, plain_mean_fraction=0.5)
    _assert_mean(weighting, [-0.5, 3, 3.5, 1])

  def test_weighed_by_anothers_diagonal(self):
    # 1 for the first, 9 for the second: (1 x 2 - 27 x 2) / 28.
    weighting = Weighting(fisher_of='another')
    _assert_mean(weighting, [-52 / 28, 3, 0, 1])

  def test_plain_length(self):
    # (1, 3, 0), norm sqrt(10), gets that of (-1, 3, 7), sqrt(59).
    scale = (59 / 10) ** 0.5
    weighting = Weighting(step_length='plain_mean')
    _assert_mean(weighting, [scale, 3 * scale, 0, 1])

  def test_tensors_of_the_logits(self):
    weighting = Weighting(plain_mean_tensors='logits')
    _assert_mean(weighting, [-1, 3, 7, 1], makes_logits=(True, False))

  def test_tensor_mean(self):
    # Means 10/3 and 2/3: diagonals (2.7, 0.3) and (1.5, 1.5).
    weighting = Weighting(fisher_normalization='tensor_mean')
    first = (2.7 * 2 - 4.5 * 2) / 7.2
    _assert_mean(weighting, [first, 4.5 * 4 / 4.8, 0, 1])


class TestCompare:
  def _compare(self, weighting, **options):
    cohort = _cohort(**options)
    return cohort.compare(weighting, cohort.mean(weighting))

  def test_direction_and_length(self):
    found = self._compare(Weighting())
    # (1, 3, 0, 1) and (-1, 3, 7, 1): 9 / (sqrt(11) sqrt(60)).
    assert found['cosine'] == pytest.approx(9 / (11 * 60) ** 0.5)
    assert found['norm_ratio'] == pytest.approx((11 / 60) ** 0.5)
    assert np.isnan(found['split_half_cosine'])

  def test_effective_clients_leave_uninformed_coordinates_out(self):
    # Parts (9, 3) / 12, (1, 3) / 4 and (4, 12) / 16: 1 / (9/16 + 1/16) each.
    found = self._compare(Weighting())
    assert found['effective_clients'] == pytest.approx(1.6)

  def test_effective_clients_of_a_mix(self):
    # Plain parts 1/4, 3/4. Half of them and of 3/4, 1/4: a half each, 2
    # clients. Elsewhere both are 1/4, 3/4: 1.6.
    found = self._compare(Weighting(plain_mean_fraction=0.5))
    assert found['effective_clients'] == pytest.approx((2 + 1.6 + 1.6) / 3)

  def test_effective_clients_of_the_plain_mean(self):
    assert self._compare(PLAIN_MEAN)['effective_clients'] == pytest.approx(1.6)
    found = self._compare(
      Weighting(plain_mean_tensors='logits'), makes_logits=(True, False)
    )
    assert found['effective_clients'] == pytest.approx(1.6)

  def test_chance_tells_equal_clients_apart(self):
    client = dataclasses.replace(_FIRST, num_batches=1)
    found = self._compare(Weighting(), clients=(client, client))
    # Two squares of normal numbers: sum a^2 = cos^4 + sin^4 of an even angle,
    # and the mean of 1 / (1 - sin(2t)^2 / 2) is sqrt(2).
    assert found['null_effective_clients'] == pytest.approx(2**0.5, rel=5e-3)
    # Many batches: chance has no part.
    client = dataclasses.replace(_FIRST, num_batches=10_000)
    found = self._compare(Weighting(), clients=(client, client))
    assert found['null_effective_clients'] == pytest.approx(2, rel=1e-3)

  @pytest.mark.parametrize(
    ('sizes_of_batches', 'expected'),
    # Batches of 4 sequences, and of 1.
    [(4, 3.5), (1, 4.0)],
  )
  def test_sizes_and_chance_in_the_cohort_of_debian(
    self, sizes_of_batches, expected
  ):
    """The expectation that docs/experiments/debian.md gives."""
    clients = [
      dataclasses.replace(
        _FIRST, weight=float(n), num_batches=-(-n // sizes_of_batches)
      )
      for n in (2, 2, 5, 4, 8, 6, 2, 8)
    ]
    found = self._compare(Weighting(), clients=clients)
    assert found['null_effective_clients'] == pytest.approx(expected, abs=0.05)
    # Kish of the weights by themselves.
    plain = self._compare(PLAIN_MEAN, clients=clients)
    assert plain['effective_clients'] == pytest.approx(6.3, abs=0.05)

  def test_halves_of_the_cohort(self):
    opposite = dataclasses.replace(
      _FIRST, delta=tuple(-d for d in _FIRST.delta)
    )
    found = self._compare(
      Weighting(), clients=(_FIRST, opposite, _FIRST, opposite)
    )
    assert found['split_half_cosine'] == pytest.approx(-1)
