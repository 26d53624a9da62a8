"""Properties of every scheme, and errors of settings that do not fit."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_fedfish.data.images.label_draws import label_histograms
from tff_fedfish.data.images.partitions import SCHEMES, Partition
from tff_fedfish.errors import UserError

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
    **parameters,
  )
  return partition, np.array(labels), num_dropped


def _split(partition, labels):
  return partition.split(labels, num_classes=_NUM_CLASSES)


@pytest.mark.parametrize('scheme', SCHEMES)
@settings(max_examples=30)
@given(data=st.data())
def test_parts_are_disjoint_exhaustive_and_reproducible(scheme, data):
  partition, labels, num_dropped = data.draw(_cases(scheme))
  parts = _split(partition, labels)
  assert len(parts) == partition.num_clients
  rows = np.concatenate(parts)
  assert rows.dtype == np.int64
  assert len(set(rows)) == len(rows) == len(labels) - num_dropped
  assert all(0 <= row < len(labels) for row in rows)
  assert all(np.array_equal(part, np.sort(part)) for part in parts)
  again = _split(partition, labels)
  assert all(map(np.array_equal, parts, again))
  histograms = label_histograms(labels, parts, _NUM_CLASSES)
  assert histograms.sum(axis=1).tolist() == [len(part) for part in parts]


_PARTITIONS = [
  Partition(scheme='per_class_over_clients', num_clients=4, seed=1, alpha=1.0),
  Partition(
    scheme='per_client_over_classes_normalised',
    num_clients=4,
    seed=1,
    alpha=1.0,
  ),
  Partition(scheme='per_client_sampling', num_clients=4, seed=1, alpha=1.0),
  Partition(
    scheme='fixed_classes', num_clients=4, seed=1, classes_per_client=2
  ),
  Partition(
    scheme='pathological_shards', num_clients=4, seed=1, shards_per_client=2
  ),
  Partition(scheme='latent_distributions', num_clients=8, seed=1),
]


def test_every_scheme_is_tried():
  assert [partition.scheme for partition in _PARTITIONS] == list(SCHEMES)


@pytest.mark.parametrize('partition', _PARTITIONS, ids=SCHEMES)
def test_another_seed_gives_other_parts(partition):
  labels = np.arange(200) % _NUM_CLASSES
  other = dataclasses.replace(partition, seed=2)
  first, second = _split(partition, labels), _split(other, labels)
  assert not all(map(np.array_equal, first, second))


def test_parameters_reach_the_scheme():
  labels = np.arange(200) % _NUM_CLASSES
  partition = Partition(
    scheme='per_class_over_clients',
    num_clients=3,
    seed=1,
    alpha=1e-3,
    min_examples=50,
  )
  assert min(len(part) for part in _split(partition, labels)) >= 50


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      dict(scheme='dirichlet'),
      '`partition.scheme` must be one of per_class_over_clients, .*, '
      "found 'dirichlet'. Change it",
    ),
    (
      dict(scheme='per_client_sampling'),
      "^`partition.alpha` is required by the scheme 'per_client_sampling', but "
      'it is not given.$',
    ),
    # Both at once.
    (
      dict(scheme='fixed_classes', alpha=0.1, min_examples=2),
      '^`partition.classes_per_client` is required .*; `partition.alpha` is '
      "not read by the scheme 'fixed_classes', but it is 0.1: leave it out; "
      '`partition.min_examples` is not read .* is 2: leave it out.$',
    ),
  ],
)
def test_settings_that_do_not_fit(settings, words):
  with pytest.raises(UserError, match=words):
    Partition(num_clients=2, seed=1, **settings)


@pytest.mark.parametrize('scheme', SCHEMES)
def test_no_clients(scheme):
  needed = {
    'fixed_classes': dict(classes_per_client=1),
    'pathological_shards': dict(shards_per_client=1),
    'latent_distributions': {},
  }.get(scheme, dict(alpha=1.0))
  partition = Partition(scheme=scheme, num_clients=0, seed=1, **needed)
  with pytest.raises(
    ValueError, match='`num_clients` must be an int of at least 1, found 0'
  ):
    _split(partition, np.zeros(20, int))


@pytest.mark.parametrize('value', [0, -1, 1.5, True])
def test_counts(value):
  partition = Partition(
    scheme='fixed_classes', num_clients=2, seed=1, classes_per_client=value
  )
  with pytest.raises(
    ValueError,
    match='`classes_per_client` must be an int of at least 1, found '
    f'{value}. Change',
  ):
    _split(partition, np.zeros(20, int))


def test_a_smallest_client_may_be_empty():
  partition = Partition(
    scheme='per_class_over_clients',
    num_clients=2,
    seed=1,
    alpha=1.0,
    min_examples=-1,
  )
  with pytest.raises(ValueError, match='an int of at least 0, found -1'):
    _split(partition, np.zeros(20, int))
  parts = _split(
    dataclasses.replace(partition, min_examples=0), np.zeros(2, int)
  )
  assert sum(map(len, parts)) == 2


@pytest.mark.parametrize('value', [0, -1.0, float('nan'), float('inf')])
def test_concentrations(value):
  partition = Partition(
    scheme='per_client_sampling', num_clients=2, seed=1, alpha=value
  )
  with pytest.raises(
    UserError,
    match=f'`alpha` must be a finite number of .* 1e-09, found {value}',
  ):
    _split(partition, np.zeros(20, int))
