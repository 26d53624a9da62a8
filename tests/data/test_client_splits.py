"""A client's side depends on its id, the seed and the fraction alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.data import client_splits, randomness

_IDS = [b'%d.example' % i for i in range(10_000)]


def _split(ids, split_seed=1, held_out_fraction=0.25):
  return client_splits.split_clients(
    ids, split_seed=split_seed, held_out_fraction=held_out_fraction
  )


def test_the_share_is_about_the_fraction():
  # 10,000 draws at 0.25: 2500 expected, standard deviation
  # sqrt(10000 * 0.25 * 0.75) = 43.3; five of them are 217.
  assert abs(len(_split(_IDS).held_out) - 2500) < 217


def test_seeds_are_independent():
  first = set(_split(_IDS, split_seed=1).held_out)
  second = set(_split(_IDS, split_seed=2).held_out)
  # Held out by both: 0.25 * 0.25 * 10000 = 625, standard deviation 24.2.
  assert abs(len(first & second) - 625) < 121


@given(st.lists(st.binary(max_size=8), unique=True), st.floats(0, 1))
def test_sides_cover_all_and_keep_the_order(ids, held_out_fraction):
  split = _split(ids, held_out_fraction=held_out_fraction)
  sides = [
    client_splits.is_held_out(
      client_id, split_seed=1, held_out_fraction=held_out_fraction
    )
    for client_id in ids
  ]
  pairs = list(zip(ids, sides, strict=True))
  assert split.held_out == [i for i, held_out in pairs if held_out]
  assert split.participating == [i for i, held_out in pairs if not held_out]


@given(
  st.lists(st.binary(max_size=8), unique=True),
  st.floats(0, 1),
  st.floats(0, 1),
)
def test_a_larger_fraction_only_adds(ids, a, b):
  small = _split(ids, held_out_fraction=min(a, b)).held_out
  large = _split(ids, held_out_fraction=max(a, b)).held_out
  assert set(small) <= set(large)


def test_other_clients_do_not_matter():
  few = _split(_IDS[:10]).held_out
  assert few == [i for i in _split(_IDS).held_out if i in _IDS[:10]]
  assert few  # Some of the ten are held out, or this would show nothing.


def test_the_fraction_is_compared_with_the_hash():
  position = randomness.fraction('client_split', 8, b'a')
  for held_out_fraction, expected in (
    (position, False),
    (position + 1e-9, True),
  ):
    assert expected == client_splits.is_held_out(
      b'a', split_seed=8, held_out_fraction=held_out_fraction
    )


def test_zero_and_one():
  assert _split(_IDS[:50], held_out_fraction=0.0).held_out == []
  assert _split(_IDS[:50], held_out_fraction=1.0).participating == []


@pytest.mark.parametrize('fraction', [-0.1, 1.5, float('nan')])
def test_a_fraction_out_of_range_is_an_error(fraction):
  message = f'`held_out_fraction` must be between 0 and 1, found {fraction}'
  with pytest.raises(ValueError, match=message):
    _split([], held_out_fraction=fraction)
  with pytest.raises(ValueError, match=message):
    client_splits.is_held_out(b'', split_seed=1, held_out_fraction=fraction)


def test_own_split_of_the_corpus():
  ids = _IDS[:50]
  own = {ids[3], ids[20], ids[41]}
  split = client_splits.split_clients(
    ids, split_seed=1, held_out_fraction=None, own_held_out=own
  )
  assert split.held_out == [ids[3], ids[20], ids[41]]
  assert split.participating == [i for i in ids if i not in own]
  # Without one nobody is held out.
  split = client_splits.split_clients(ids, split_seed=1, held_out_fraction=None)
  assert split == client_splits.ClientSplit(participating=ids, held_out=[])


def test_share_is_of_the_clients_that_are_not_held_out_anyway():
  ids = _IDS[:50]
  hashed = _split(ids, held_out_fraction=0.5)
  # One that the share would hold out, and one that it would not.
  own = {hashed.held_out[0], hashed.participating[0]}
  split = client_splits.split_clients(
    ids, split_seed=1, held_out_fraction=0.5, own_held_out=own
  )
  assert split.held_out == hashed.held_out[1:]
  assert split.participating == hashed.participating[1:]
