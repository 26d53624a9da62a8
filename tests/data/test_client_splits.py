"""A client's side depends on its id, the seed and the fraction alone."""

import hashlib
import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.data import client_splits, cohorts
from tff_fedfish.data.client_ids import ClientIds

_IDS = [b'%d.example' % i for i in range(10_000)]


def _split(ids, split_seed=1, held_out_fraction=0.25):
  return client_splits.split_clients(
    ids, split_seed=split_seed, held_out_fraction=held_out_fraction
  )


@given(st.lists(st.binary(max_size=8), unique=True), st.floats(0, 1))
def test_sides_cover_all_and_keep_the_order(ids, held_out_fraction):
  split = _split(ids, held_out_fraction=held_out_fraction)
  sides = [
    client_splits.split_position(client_id, split_seed=1) < held_out_fraction
    for client_id in ids
  ]
  pairs = list(zip(ids, sides, strict=True))
  assert split.held_out == [i for i, held_out in pairs if held_out]
  assert split.participating == [i for i, held_out in pairs if not held_out]


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


def test_validation_clients_are_some_of_those_held_out():
  held_out = _split(_IDS)
  split = client_splits.with_validation(held_out, 1, 0.4)
  assert split.participating == held_out.participating
  assert not {*split.held_out} & {*split.validation}
  assert {*split.held_out, *split.validation} == {*held_out.held_out}
  # Of about 2,500 a fraction of 0.4 is 1,000 +- 25; by a hash of their own.
  assert 900 < len(split.validation) < 1100
  assert not {*_split(_IDS, held_out_fraction=0.05).held_out} <= {
    *split.validation
  }


def _digest(client_ids):
  hasher = hashlib.sha256()
  for client_id in client_ids:
    hasher.update(len(client_id).to_bytes(8, 'big') + client_id)
  return hasher.hexdigest()


# Computed with the code of 9132657: seed, fraction, clients that participate,
# and digests of them, of the held-out ones, of their order in evaluation, and
# of the cohorts of 64 in rounds 1, 2 and 777 with the next seed.
@pytest.mark.parametrize(
  'seed, fraction, are_in_arrow, num_participating, expected',
  [
    (
      1,
      0.1,
      False,
      89_983,
      (
        '15121302613f6b80c123aab9deb5054da6fd4a5cdeaf7aec061c8b8253b87302',
        '1be3c877a5d53c30523274453957ec5e3949d36dcb5237ed5ddaccf76d9dde8e',
        'c176429c3bcaee9dc3c05dedfeab7942a32d687d4dcfd2f33d6b570e8fb95a11',
        '2ef05a097963dc1a53c8f90979232543736b6c5ec1cf25be9bab71e4935995c7',
      ),
    ),
    (
      20251,
      0.37,
      True,
      62_966,
      (
        '6c15ddf64c89e46922d9680db08a8b6abda07bc139954ead430f96cb334698f2',
        '45189d6c8505a6328f396cf8a4768d622ce0627cf0873bc4c2e3b8702ce54e27',
        '5eadd07faca54fc8ef0ef2a042e98588ae775189ad09e0c0a68206227e6483b8',
        '1418129edfc238160bae1357b80c098da19ebe690930de37d8198fe969c37ea1',
      ),
    ),
  ],
)
def test_100_000_clients_are_divided_and_drawn_as_ever(
  seed, fraction, are_in_arrow, num_participating, expected
):
  ids = sorted(
    b'host-%d.%s' % (i * 7919 % 100_003, b'x' * (i % 97))
    for i in range(100_000)
  )
  if are_in_arrow:
    ids = ClientIds([pa.array(ids, pa.binary())])
  split = _split(ids, split_seed=seed, held_out_fraction=fraction)
  assert len(split.participating) == num_participating
  order = cohorts.draw_order(split.held_out, seed=seed, round_num=0)
  drawn = [
    cohorts.draw_cohort(
      split.participating, seed=seed + 1, round_num=round_num, cohort_size=64
    )
    for round_num in (1, 2, 777)
  ]
  assert expected == (
    _digest(split.participating),
    _digest(split.held_out),
    _digest(order),
    _digest(itertools.chain.from_iterable(drawn)),
  )


def test_hashes_in_chunks(monkeypatch):
  monkeypatch.setattr(client_splits, '_HASHED_AT_ONCE', 64)
  split = client_splits.split_clients(
    _IDS[:150], split_seed=1, held_out_fraction=0.25
  )
  assert split == _split(_IDS[:150])
