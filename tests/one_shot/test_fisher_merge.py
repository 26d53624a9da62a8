"""FisherMerge by hand, and what it reduces to."""

import types

import numpy as np
import pytest
import tensorflow as tf
from uploaded_models import ListedUploads

from tff_fedfish.methods.one_shot import fisher_merge_solve as fisher_merge
from tff_fedfish.methods.one_shot import quadratic
from tff_fedfish.methods.one_shot.solving import SolveContext, Upload


def _solve(uploads, *, floor=1e-6, divides_by_norm=False):
  settings = types.SimpleNamespace(
    fisher_floor=floor, divides_by_norm=divides_by_norm
  )
  context = SolveContext(settings, None, None, 0)
  result = fisher_merge.solve(uploads, uploads.start, context)
  assert result.best_step is None and result.residual is None
  assert all(w.dtype == np.float32 for w in result.weights)
  return result.weights


def _uploads(num_examples, weights, fishers):
  def arrays(tensors):
    return tuple(np.array(t, np.float32) for t in tensors)

  return ListedUploads(
    map(
      Upload,
      num_examples,
      map(arrays, weights),
      (
        {f'diagonal/{i}': f for i, f in enumerate(arrays(tensors))}
        for tensors in fishers
      ),
    )
  )


def _two_clients():
  # V7 with a second tensor: p = (1/4, 3/4).
  #   client  weights         fisher
  #     1     (1, 0, 2), (4)  (2, 0, 0), (1)
  #     2     (3, -2, 4), (8) (1, 4, 0), (3)
  return _uploads(
    (10, 30),
    [([1, 0, 2], [[4]]), ([3, -2, 4], [[8]])],
    [([2, 0, 0], [[1]]), ([1, 4, 0], [[3]])],
  )


def test_by_hand():
  uploads = _two_clients()
  first, second = _solve(uploads)
  # (2/4 + 9/4) / (2/4 + 3/4); -6 / 3; no mass: 2/4 + 12/4.
  np.testing.assert_allclose(first, (2.2, -2, 3.5), rtol=1e-6)
  # (4/4 + 72/4) / (1/4 + 9/4) = 19 / 2.5
  np.testing.assert_allclose(second, [[7.6]], rtol=1e-6)
  assert uploads.num_read == 2


def test_the_floor():
  # Masses 1.25, 3, 0 and 2.5: with 1.3 the first keeps w_bar = 1/4 + 9/4 too.
  first, second = _solve(_two_clients(), floor=1.3)
  np.testing.assert_allclose(first, (2.5, -2, 3.5), rtol=1e-6)
  np.testing.assert_allclose(second, [[7.6]], rtol=1e-6)
  # A mass that equals the floor counts.
  first, _ = _solve(_two_clients(), floor=1.25)
  np.testing.assert_allclose(first, (2.2, -2, 3.5), rtol=1e-6)


def test_norms_are_those_over_all_tensors():
  # Norms sqrt(4 + 1) and sqrt(1 + 16 + 9).
  n1, n2 = np.sqrt(5), np.sqrt(26)
  first, second = _solve(_two_clients(), divides_by_norm=True)
  mass = 2 / 4 / n1 + 3 / 4 / n2
  np.testing.assert_allclose(
    first, ((2 / 4 / n1 + 9 / 4 / n2) / mass, -2, 3.5), rtol=1e-6
  )
  mass = 1 / 4 / n1 + 9 / 4 / n2
  np.testing.assert_allclose(
    second, [[(4 / 4 / n1 + 72 / 4 / n2) / mass]], rtol=1e-6
  )


def _random_uploads(seed, *, equal=False):
  rng = np.random.default_rng(seed)
  shapes = ([4, 3], [2])
  weights = [[rng.normal(size=s) for s in shapes] for _ in range(3)]
  fishers = [
    # Many coordinates without any mass.
    [rng.exponential(size=s) * (rng.random(s) < 0.4) for s in shapes]
    for _ in range(3)
  ]
  if equal:
    fishers = [[f + 0.1 for f in fishers[0]]] * 3
  return _uploads((7, 2, 5), weights, fishers)


def test_equal_fishers_give_the_average():
  uploads = _random_uploads(3, equal=True)
  for found, expected in zip(_solve(uploads), uploads.start, strict=True):
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_floor_0_is_the_closed_form_of_the_quadratic():
  uploads = _random_uploads(5)
  mass, weighted = [], []
  for i in range(2):
    fishers = [u.summary[f'diagonal/{i}'] for u in uploads]
    terms = zip(uploads.shares, fishers, uploads, strict=True)
    mass.append(np.average(fishers, axis=0, weights=uploads.shares))
    weighted.append(sum(p * f * u.weights[i] for p, f, u in terms))
  expected = quadratic.closed_form(
    *([tf.constant(t, tf.float32) for t in ts] for ts in (mass, weighted)),
    tuple(map(tf.constant, uploads.start)),
  )
  found = _solve(uploads, floor=0.0)
  assert any(np.any(m == 0) for m in mass)
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_one_client_returns_it():
  uploads = _uploads((3,), [([1.5, -2], [0.3])], [([0.1, 7], [0])])
  for found, expected in zip(_solve(uploads), uploads[0].weights, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize('divides_by_norm', [False, True])
def test_without_any_fisher_the_average_stays(divides_by_norm):
  uploads = _uploads((1, 3), [([1, 2],), ([5, 0],)], [([0, 0],), ([0, 0],)])
  (found,) = _solve(uploads, floor=0.0, divides_by_norm=divides_by_norm)
  np.testing.assert_array_equal(found, (4.0, 0.5))


def test_a_missing_tensor_is_named():
  uploads = _two_clients()
  del uploads[1].summary['diagonal/1']
  with pytest.raises(KeyError, match='diagonal/1'):
    _solve(uploads)
