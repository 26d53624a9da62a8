"""Partition schemes: properties of all of them, and classes of clients."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_fedfish.data.images import label_draws, partitions
from tff_fedfish.data.images.label_draws import label_histograms, rows_by_class
from tff_fedfish.data.images.partitions import SCHEMES, Partition

_NUM_CLASSES = 4
_ALPHAS = st.sampled_from([1e-6, 0.01, 0.5, 1.0, 100.0])


@st.composite
def _cases(draw, scheme):
  """Returns (partition, labels, number of examples that it drops)."""
  labels = draw(
    st.lists(st.integers(0, _NUM_CLASSES - 1), min_size=1, max_size=60)
  )
  num_clients = draw(st.integers(1, 8))
  parameters, num_dropped = {}, 0
  if scheme == 'fixed_classes':
    # As many as classes, so that each has a client without drawing again.
    num_clients += _NUM_CLASSES - 1
    parameters = dict(classes_per_client=draw(st.integers(1, _NUM_CLASSES)))
  elif scheme == 'pathological_shards':
    num_clients *= 2
    parameters = dict(shards_per_client=2 * draw(st.integers(1, 3)))
  elif scheme == 'latent_distributions':
    num_clients += _NUM_CLASSES - 1
  else:
    parameters = dict(alpha=draw(_ALPHAS))
    if scheme == 'per_class_over_clients':
      parameters |= dict(min_examples=0)
    if scheme == 'per_client_sampling':
      num_clients = min(num_clients, len(labels))
      num_dropped = len(labels) % num_clients
  partition = Partition(
    scheme=scheme,
    num_clients=num_clients,
    seed=draw(st.integers(0, 2**31 - 1)),
    parameters=tuple(parameters.items()),
  )
  return partition, np.array(labels), num_dropped


def _divide(partition, labels):
  return partition.divide(labels, num_classes=_NUM_CLASSES)


@pytest.mark.parametrize('scheme', SCHEMES)
@settings(max_examples=30)
@given(data=st.data())
def test_parts_are_disjoint_exhaustive_and_reproducible(scheme, data):
  partition, labels, num_dropped = data.draw(_cases(scheme))
  parts = _divide(partition, labels)
  assert len(parts) == partition.num_clients
  rows = np.concatenate(parts)
  assert rows.dtype == np.int64
  assert len(set(rows)) == len(rows) == len(labels) - num_dropped
  assert all(0 <= row < len(labels) for row in rows)
  assert all(np.array_equal(part, np.sort(part)) for part in parts)
  again = _divide(partition, labels)
  assert all(map(np.array_equal, parts, again))
  histograms = label_histograms(labels, parts, _NUM_CLASSES)
  assert histograms.sum(axis=1).tolist() == [len(part) for part in parts]


_PARAMETERS = {
  'per_class_over_clients': dict(alpha=1.0, min_examples=1),
  'per_client_over_classes_normalised': dict(alpha=1.0),
  'per_client_sampling': dict(alpha=1.0),
  'fixed_classes': dict(classes_per_client=2),
  'pathological_shards': dict(shards_per_client=2),
  'latent_distributions': {},
}


# SHA-256 of the rows of each client.
_PINNED = {
  'per_class_over_clients': 'ddeed75c76bb1639',
  'per_client_over_classes_normalised': '651203fb28cef391',
  'per_client_sampling': '54a0f3fc78591d69',
  'fixed_classes': '5e53483cff98a45b',
  'pathological_shards': '592b8c24ee62e3aa',
  'latent_distributions': '8714246d7fb40fe4',
}


@pytest.mark.parametrize('name', SCHEMES)
def test_rows_are_those_of_earlier_versions(name):
  scheme = SCHEMES[name]
  assert scheme.required + scheme.optional == tuple(_PARAMETERS[name])
  partition = Partition(
    scheme=name, num_clients=8, seed=5, parameters=(*_PARAMETERS[name].items(),)
  )
  parts = _divide(partition, np.arange(203) % _NUM_CLASSES)
  found = hashlib.sha256(repr([part.tolist() for part in parts]).encode())
  assert found.hexdigest()[:16] == _PINNED[name]


class TestFixedClasses:
  def _histograms(self, labels, num_classes, **changes):
    parameters = dict(num_clients=4, seed=1, classes_per_client=2) | changes
    parts = partitions.fixed_classes(
      rows_by_class(labels, num_classes), **parameters
    )
    return label_histograms(labels, parts, num_classes)

  def test_a_class_is_divided_evenly_among_its_clients(self):
    labels = np.repeat(np.arange(5), 61)
    histograms = self._histograms(
      labels, 5, num_clients=12, classes_per_client=3
    )
    for client, row in enumerate(histograms):
      assert np.count_nonzero(row) == 3
      assert row[client % 5] > 0
    for column in histograms.T:
      sizes = column[column > 0]
      # 61 among k: sizes differ by at most one.
      assert sizes.sum() == 61 and sizes.max() - sizes.min() <= 1
    # Others than the first are drawn: not all clients of a class have the same.
    assert len({tuple(row > 0) for row in histograms}) > 5

  def test_draws_again_until_every_class_has_a_client(self):
    # Clients 0 and 1 have classes 0 and 1 and one more of three: that these
    # are 2 and 3, in some order, has probability 2/9.
    for seed in range(8):
      histograms = self._histograms(
        np.repeat(np.arange(4), 5), 4, num_clients=2, seed=seed
      )
      assert histograms.sum(axis=0).tolist() == [5] * 4


def test_shards_of_a_client():
  # Classes of 9, 12, 15 and 3 examples in three shards: 3, 4, 5 and 1.
  labels = np.repeat(np.arange(4), [9, 12, 15, 3])
  num_twice = 0
  for seed in range(20):
    parts = partitions.pathological_shards(
      rows_by_class(labels, 4), num_clients=6, seed=seed, shards_per_client=2
    )
    shards = label_histograms(labels, parts, 4) / [3, 4, 5, 1]
    assert shards.sum(axis=1).tolist() == [2] * 6
    assert shards.sum(axis=0).tolist() == [3] * 4
    num_twice += np.count_nonzero(shards == 2)
  # A second shard is of the same class with probability 2/11: 21.8 of 120.
  assert 2 <= num_twice <= 42


def test_latent_distributions_by_hand():
  # Classes 2 and 5, three clients: 0 and 2 share the four of class 2.
  labels = np.array([5, 2, 2, 5, 2, 5, 2])
  parts = partitions.latent_distributions(
    rows_by_class(labels, 6), num_clients=3, seed=1
  )
  classes = [labels[part].tolist() for part in parts]
  assert classes == [[2, 2], [5, 5, 5], [2, 2]]


def test_matching_split_by_hand():
  # Class 0, 3 : 1 in training: 8 end at 8 * 3 // 4 = 6. Class 1 is nobody's.
  # Class 2, 1 : 1: 3 end at 3 // 2 = 1.
  labels = np.array([0] * 8 + [1] * 5 + [2] * 3)
  histograms = np.array([[3, 0, 1], [1, 0, 1]])
  parts = partitions.matching_split(labels, histograms, seed=1)
  assert label_histograms(labels, parts, 3).tolist() == [[6, 0, 1], [2, 0, 2]]


@given(
  st.integers(0, 50),
  st.lists(st.floats(0, 1), min_size=1).filter(any)
  | st.lists(st.integers(0, 9), min_size=1).filter(any),
)
def test_a_cut_has_all_rows_once_and_none_for_a_share_of_0(num_rows, shares):
  parts = label_draws.cut(np.arange(num_rows), np.array(shares))
  assert np.concatenate(parts).tolist() == list(range(num_rows))
  for part, share in zip(parts, shares, strict=True):
    assert share > 0 or len(part) == 0


def test_label_skew_by_hand():
  # q = (4, 2, 0) / 6. p = (1, 0, 0): 1/3 + 1/3; (1/2, 1/2, 0): 1/6 + 1/6. The
  # mean is (2/3 + 1/3) / 2 = 1/2; the empty client does not count.
  histograms = np.array([[2, 0, 0], [2, 2, 0], [0, 0, 0]])
  assert label_draws.label_skew(histograms) == pytest.approx(1 / 2)
