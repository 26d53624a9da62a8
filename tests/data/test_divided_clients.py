"""Divided clients: parts of their rows, rounds on one part, targets."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from token_stores import letter_tokenizer

from tff_fedfish.data import randomness
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.divided_clients import (
  DividedClients,
  divide_rows,
  shuffled_targets,
)
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.sequences import with_noise


class _Corpus:
  """Clients whose text repeats their own letter, 20 letters a document."""

  def examples(self, client_id):
    return [{'text': b' '.join([client_id] * 20)}] * 2


def _images():
  # Client b has images 0 to 9, client a 10 to 14, their twins 15 to 17 and 18.
  return ImageClients(
    images=np.arange(19, dtype=np.uint8).reshape(19, 1, 1, 1),
    labels=np.zeros(19, np.int32),
    client_rows={
      b'b': np.arange(10),
      b'a': np.arange(10, 15),
      b'test-b': np.arange(15, 18),
      b'test-a': np.array([18]),
    },
    num_classes=1,
  )


def _sequences():
  # 42 tokens: five blocks of 8, and 2 tokens in a sixth.
  return ClientSequences(_Corpus(), letter_tokenizer(), sequence_length=7)


_KINDS = {'images': _images, 'sequences': _sequences}


@pytest.fixture(params=_KINDS)
def kind(request):
  return _KINDS[request.param](), [b'b', b'a']


def _divided(rows, client_ids=(b'a', b'b'), **changes):
  values = dict(split_seed=3, validation_fraction=0.2, test_fraction=0.3)
  return DividedClients(rows, client_ids=client_ids, **(values | changes))


def _arrays(rows):
  """Returns the bytes of every row's arrays."""
  names = ('images', 'labels', 'tokens', 'num_targets', 'noise_seeds')
  arrays = [getattr(rows, name, None) for name in names]
  return [
    b''.join(array[i].tobytes() for array in arrays if array is not None)
    for i in range(len(rows))
  ]


def _numbers(rows):
  return rows.images.ravel().tolist()


class TestDivideRows:
  def test_by_hand(self):
    order = randomness.generator('client_validation', 3, b'c').permutation(10)
    parts = divide_rows(
      10, b'c', split_seed=3, validation_fraction=0.2, test_fraction=0.35
    )
    # floor(3.5) = 3 tests, then floor(2.0) = 2 of validation.
    assert parts.test.tolist() == sorted(order[:3])
    assert parts.validation.tolist() == sorted(order[3:5])
    assert parts.train.tolist() == sorted(order[5:])

  @pytest.mark.parametrize(
    ('num_rows', 'fractions', 'sizes'),
    [
      # At least one row of validation where two are left.
      (2, (0.1, 0.0), (1, 1, 0)),
      (1, (0.9, 0.0), (1, 0, 0)),
      (0, (0.2, 0.2), (0, 0, 0)),
      # floor(1.0) = 1 test; of one row that is left none validates.
      (2, (0.2, 0.5), (1, 0, 1)),
      (3, (0.2, 0.5), (1, 1, 1)),
      (10, (0.0, 0.99), (1, 0, 9)),
      (7, (0.0, 0.0), (7, 0, 0)),
    ],
  )
  def test_sizes(self, num_rows, fractions, sizes):
    validation_fraction, test_fraction = fractions
    parts = divide_rows(
      num_rows,
      b'c',
      split_seed=0,
      validation_fraction=validation_fraction,
      test_fraction=test_fraction,
    )
    assert tuple(map(len, parts)) == sizes

  @hypothesis.given(
    num_rows=strategies.integers(0, 60),
    client_id=strategies.binary(max_size=4),
    split_seed=strategies.integers(0, 3),
    validation_fraction=strategies.floats(0, 0.99),
    share=strategies.floats(0, 0.99),
  )
  def test_parts_are_disjoint_and_exhaustive(
    self, num_rows, client_id, split_seed, validation_fraction, share
  ):
    parts = divide_rows(
      num_rows,
      client_id,
      split_seed=split_seed,
      validation_fraction=validation_fraction,
      test_fraction=share * (1 - validation_fraction),
    )
    assert sorted(np.concatenate(parts)) == list(range(num_rows))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(parts.train) >= min(num_rows, 1)
    assert bool(len(parts.validation)) == (
      validation_fraction > 0 and num_rows - len(parts.test) >= 2
    )


class TestParts:
  def test_by_hand(self):
    divided = _divided(_images())
    parts = divide_rows(
      10, b'b', split_seed=3, validation_fraction=0.2, test_fraction=0.3
    )
    assert _numbers(divided.sequences(b'b')) == parts.train.tolist()
    assert (
      _numbers(divided.validation_sequences(b'b')) == parts.validation.tolist()
    )
    assert _numbers(divided.test_sequences(b'b')) == parts.test.tolist()

  def test_other_clients_have_all_rows(self):
    rows = _images()
    divided = _divided(rows, [b'a'])
    assert len(divided.sequences(b'b')) == 10
    with pytest.raises(KeyError):
      divided.validation_sequences(b'b')
    with pytest.raises(KeyError):
      divided.test_sequences(b'b')
    with pytest.raises(KeyError):
      divided.sequences(b'nobody')
    found, expected = (
      of.training_sequences(b'b', shuffle_seed=1, round_num=2)
      for of in (divided, rows)
    )
    assert _arrays(found) == _arrays(expected)

  def test_twins(self):
    # The corpus leaves out a client without images, as it does c and test-c.
    twins = {b'b': b'test-b', b'a': b'test-c'}
    assert len(_divided(_images(), test_twins=twins).test_sequences(b'a')) == 0
    divided = _divided(_images(), test_twins={b'b': b'test-b'})
    assert _numbers(divided.test_sequences(b'b')) == [15, 16, 17]
    # None of its own rows is for testing, and a has no twin.
    assert len(divided.sequences(b'b')) == 8
    assert len(divided.test_sequences(b'a')) == 0

  def test_targets(self):
    options = dict(target_of={b'a': b'b', b'b': b'a'})
    divided, own = _divided(_images(), **options), _divided(_images())
    for of in ('validation_sequences', 'test_sequences'):
      found = _numbers(getattr(divided, of)(b'a'))
      assert found == _numbers(getattr(own, of)(b'b'))
    assert _numbers(divided.sequences(b'a')) == _numbers(own.sequences(b'a'))
    twins = {b'a': b'test-a', b'b': b'test-b'}
    divided = _divided(_images(), test_twins=twins, **options)
    assert _numbers(divided.test_sequences(b'a')) == [15, 16, 17]


class TestRounds:
  _LIMITS = (
    {},
    dict(max_sequences=2),
    dict(stream_length=7),
    dict(max_sequences=4, full_batches_of=2, repeats_rows=True),
  )

  @pytest.mark.parametrize('limits', _LIMITS)
  def test_no_fraction_changes_nothing(self, kind, limits):
    rows, client_ids = kind
    divided = _divided(
      rows, client_ids, validation_fraction=0.0, test_fraction=0.0
    )
    for client_id in client_ids:
      assert _arrays(divided.sequences(client_id)) == _arrays(
        rows.sequences(client_id)
      )
      assert len(divided.validation_sequences(client_id)) == 0
      found, expected = (
        of.training_sequences(client_id, shuffle_seed=1, round_num=2, **limits)
        for of in (divided, rows)
      )
      assert _arrays(found) == _arrays(expected)
      assert found.num_lost_tokens == expected.num_lost_tokens

  @pytest.mark.parametrize('limits', _LIMITS)
  def test_a_round_is_that_of_a_client_with_the_train_rows(self, kind, limits):
    rows, client_ids = kind
    divided = _divided(rows, client_ids)
    for client_id in client_ids:
      train = divided.sequences(client_id)
      purposes = dict(shuffle_seed=1, round_num=2, client_id=client_id)
      if 'stream_length' in limits:
        order, _ = randomness.stream_rows(len(train), 7, **purposes)
      else:
        order = randomness.permutation(
          len(train), shuffle_seed=1, pass_num=2, client_id=client_id
        )
        if 'repeats_rows' in limits:
          order = np.resize(order, 4)
        order = order[: limits.get('max_sequences')]
      expected = train.select(order)
      found = divided.training_sequences(**purposes, **limits)
      if found.noise_seeds is not None:
        expected = with_noise(expected, 1, 2, client_id)
      assert _arrays(found) == _arrays(expected)

  def test_counts_are_those_of_the_train_rows(self, kind):
    rows, client_ids = kind
    divided = _divided(rows, client_ids)
    for client_id in client_ids:
      train = divided.sequences(client_id)
      found = divided.training_sequences(
        client_id, shuffle_seed=1, round_num=2, max_sequences=1
      )
      assert found.num_dropped_sequences == len(train) - 1
      assert found.num_dropped_tokens == train.num_tokens - found.num_tokens


class TestShuffledTargets:
  def test_by_hand(self):
    order = randomness.generator('shuffled_targets', 1).permutation(3)
    assert shuffled_targets([b'c', b'a', b'b'], split_seed=1) == {
      b'a': b'abc'[order[0] : order[0] + 1],
      b'b': b'abc'[order[1] : order[1] + 1],
      b'c': b'abc'[order[2] : order[2] + 1],
    }
