"""Images as rows: orders, caps, and seeds of noise."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.images.image_clients import ImageClients, ImageRows
from tff_fedfish.evaluation.personalization import split_sequences


def _rows(count):
  """Rows whose image i holds i everywhere and whose class is i % 3."""
  numbers = np.arange(count)
  return ImageRows(
    images=np.tile(numbers.astype(np.uint8)[:, None, None, None], (1, 3, 2, 1)),
    labels=(numbers % 3).astype(np.int32),
    noise_seeds=np.stack([numbers, -numbers], axis=1).astype(np.int32),
  )


@pytest.fixture
def client_images():
  return ImageClients(
    images=_rows(12).images,
    labels=_rows(12).labels,
    client_rows={b'a': np.array([1, 3, 5, 7, 9, 11]), b'b': np.array([0, 2])},
    num_classes=3,
  )


def _numbers(rows):
  return rows.images[:, 0, 0, 0].tolist()


class TestRows:
  def test_permute_moves_images_with_their_labels_and_seeds(self):
    found = sequences_lib.permute(_rows(40), np.random.RandomState(1))
    order = np.random.RandomState(1).permutation(40)
    assert list(order) != sorted(order)
    assert _numbers(found) == order.tolist()
    np.testing.assert_array_equal(found.labels, order % 3)
    np.testing.assert_array_equal(found.noise_seeds[:, 1], -order)

  def test_take_counts_a_token_for_each_image(self):
    found = sequences_lib.take(_rows(5), 3)
    assert _numbers(found) == [0, 1, 2]
    assert (found.num_dropped_sequences, found.num_dropped_tokens) == (2, 2)
    # Cut again: one more on top.
    found = sequences_lib.take(found, 2)
    assert (found.num_dropped_sequences, found.num_dropped_tokens) == (3, 3)
    assert found.num_lost_tokens == 3
    assert found.num_tokens == len(found) == 2

  def test_halves_for_personalization(self):
    halves = split_sequences(
      _rows(7), client_id=b'a', split_seed=3, fractions=(0.25, 0.5)
    )
    # ceil(7 / 2) = 4, floor(7 / 4) = 1, the rest.
    assert len(halves.evaluation) == 4
    assert len(halves.personalization[0.25]) == 1
    half = _numbers(halves.personalization[0.5])
    assert _numbers(halves.personalization[0.25]) == half[:1]
    assert sorted(half + _numbers(halves.evaluation)) == list(range(7))

  @pytest.mark.parametrize('count', [0, 1, 5])
  def test_batches_have_one_type_whatever_the_client(
    self, count, client_images
  ):
    dataset = sequences_lib.to_dataset(_rows(count), batch_size=2)
    expected = collections.OrderedDict(
      x=collections.OrderedDict(
        image=tf.TensorSpec([None, 3, 2, 1], tf.uint8),
        noise_seed=tf.TensorSpec([None, 2], tf.int32),
      ),
      y=tf.TensorSpec([None], tf.int32),
    )
    assert dataset.element_spec == expected
    assert client_images.element_spec == expected
    assert len(list(dataset)) == (count + 1) // 2

  def test_batches_keep_order_and_the_last_partial_one(self):
    batches = list(sequences_lib.to_dataset(_rows(3), batch_size=2))
    assert [b['x']['image'][:, 0, 0, 0].numpy().tolist() for b in batches] == [
      [0, 1],
      [2],
    ]
    assert [b['y'].numpy().tolist() for b in batches] == [[0, 1], [2]]


class TestClientImages:
  def _train(self, client_images, **changes):
    values = dict(
      client_id=b'a', shuffle_seed=4, round_num=1, max_sequences=None
    )
    values |= changes
    return client_images.training_sequences(values.pop('client_id'), **values)

  def test_all_of_a_client(self, client_images):
    rows = client_images.sequences(b'a')
    assert _numbers(rows) == [1, 3, 5, 7, 9, 11]
    assert rows.labels.tolist() == [1, 0, 2, 1, 0, 2]
    assert rows.noise_seeds.dtype == np.int32
    assert not rows.noise_seeds.any()
    with pytest.raises(KeyError):
      client_images.sequences(b'c')

  def test_order_and_cap_of_a_round(self, client_images):
    rows = self._train(client_images, max_sequences=4)
    generator = randomness.generator('client_shuffle', 4, 1, b'a')
    order = generator.permutation(6)
    assert _numbers(rows) == (2 * order + 1).tolist()[:4]
    assert rows.num_dropped_sequences == 2

  def test_images_are_repeated_into_full_batches_with_other_noise(
    self, client_images
  ):
    rows = self._train(
      client_images,
      client_id=b'b',
      max_sequences=7,
      full_batches_of=3,
      repeats_rows=True,
    )
    assert _numbers(rows) == _numbers(rows)[:2] * 3
    assert sorted(_numbers(rows)[:2]) == [0, 2]
    assert len(np.unique(rows.noise_seeds, axis=0)) == 6
    assert rows.num_dropped_sequences == 0

  def test_rounds_of_a_stream_go_on(self, client_images):
    passes = sum(
      (_numbers(self._train(client_images, round_num=n)) for n in (1, 2)), []
    )
    rounds = [
      self._train(client_images, round_num=n, stream_length=4)
      for n in (1, 2, 3)
    ]
    # 12 images: two passes over six.
    assert sum(map(_numbers, rounds), []) == passes
    seeds = np.concatenate([rows.noise_seeds for rows in rounds])
    assert len({tuple(seed) for seed in seeds.tolist()}) == 12
    # Round 2 ends with the first two of pass 2.
    x = rounds[1].batch_features()['x']
    assert list(x) == ['image', 'noise_seed', 'is_repeated']
    repeats = [number in passes[4:6] for number in passes[6:8]]
    assert x['is_repeated'].tolist() == [False, False, *repeats]
    last = rounds[1].select(slice(3, None))
    assert last.is_repeated.tolist() == repeats[1:]

  def test_noise_is_a_function_of_seed_round_and_client(self, client_images):
    first = self._train(client_images)
    again = self._train(client_images)
    np.testing.assert_array_equal(first.noise_seeds, again.noise_seeds)
    for change in (
      dict(shuffle_seed=5),
      dict(round_num=2),
      dict(client_id=b'b'),
    ):
      other = self._train(client_images, **change)
      count = len(other)
      assert (first.noise_seeds[:count] != other.noise_seeds).any(axis=1).all()

  def test_noise_differs_from_row_to_row(self, client_images):
    seeds = self._train(client_images).noise_seeds
    assert seeds.dtype == np.int32
    assert len({tuple(seed) for seed in seeds.tolist()}) == 6
    # Of the whole range of a seed, which starts at 0.
    assert seeds.min() >= 0
    assert seeds.max() > 2**28

  def test_cap_leaves_the_noise_of_what_is_kept(self, client_images):
    whole = self._train(client_images)
    capped = self._train(client_images, max_sequences=2)
    np.testing.assert_array_equal(capped.noise_seeds, whole.noise_seeds[:2])

  def test_rows_are_copies(self, client_images):
    rows = client_images.sequences(b'b')
    rows.images[:] = 99
    assert _numbers(client_images.sequences(b'b')) == [0, 2]
    assert dataclasses.is_dataclass(rows)
