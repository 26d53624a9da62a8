"""Image clients and their rows: orders, caps, noise, fingerprint."""

import collections
import hashlib
import struct

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.images.image_clients import ImageClients, ImageRows


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
    client_rows={
      b'b': np.array([0, 2]),
      b'c': np.array([], int),
      b'a': np.array([1, 3, 5, 7, 9, 11]),
    },
    num_classes=3,
    held_out=(b'c', b'b'),
  )


def _numbers(rows):
  return rows.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize('count', [0, 1, 5])
def test_batches_have_one_type_whatever_the_client(count):
  dataset = sequences_lib.to_dataset(_rows(count), batch_size=2)
  expected = collections.OrderedDict(
    x=collections.OrderedDict(
      image=tf.TensorSpec([None, 3, 2, 1], tf.uint8),
      noise_seed=tf.TensorSpec([None, 2], tf.int32),
    ),
    y=tf.TensorSpec([None], tf.int32),
  )
  assert dataset.element_spec == expected
  labels = [batch['y'].numpy().tolist() for batch in dataset]
  assert labels == {0: [], 1: [[0]], 5: [[0, 1], [2, 0], [1]]}[count]


class TestClientImages:
  def _train(self, client_images, **changes):
    values = dict(
      client_id=b'a', shuffle_seed=4, round_num=1, max_sequences=None
    )
    values |= changes
    return client_images.training_sequences(values.pop('client_id'), **values)

  def test_all_of_a_client(self, client_images):
    # Sorted, without the client that has no image.
    assert client_images.client_ids == [b'a', b'b']
    assert client_images.held_out == (b'b',)
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
    assert (rows.num_dropped_sequences, rows.num_dropped_tokens) == (2, 2)
    assert rows.num_tokens == len(rows) == 4

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

  def test_rounds_of_a_stream_have_noise_of_their_own(self, client_images):
    rounds = [
      self._train(client_images, round_num=n, stream_length=4)
      for n in (1, 2, 3)
    ]
    seeds = np.concatenate([rows.noise_seeds for rows in rounds])
    assert len(np.unique(seeds, axis=0)) == 12
    x = rounds[1].batch_features()['x']
    assert list(x) == ['image', 'noise_seed', 'is_repeated']
    np.testing.assert_array_equal(x['image'], rounds[1].images)

  def test_noise_is_a_function_of_seed_round_and_client(self, client_images):
    seeds = self._train(client_images).noise_seeds
    assert seeds.dtype == np.int32
    # Of the whole range of a seed, other ones for each row.
    assert seeds.min() >= 0 and seeds.max() > 2**28
    assert len({tuple(seed) for seed in seeds.tolist()}) == 6
    capped = self._train(client_images, max_sequences=2)
    np.testing.assert_array_equal(capped.noise_seeds, seeds[:2])
    for change in (
      dict(shuffle_seed=5),
      dict(round_num=2),
      dict(client_id=b'b'),
    ):
      other = self._train(client_images, **change).noise_seeds
      assert (seeds[: len(other)] != other).any(axis=1).all()

  def test_rows_are_copies(self, client_images):
    client_images.sequences(b'b').images[:] = 99
    assert _numbers(client_images.sequences(b'b')) == [0, 2]


def test_fingerprint_by_hand():
  clients = ImageClients(
    images=np.arange(6 * 2 * 3, dtype=np.uint8).reshape(6, 2, 3, 1),
    labels=np.array([0, 3, 1, 1, 0, 2], np.int32),
    client_rows={b'c': [5], b'a': [1, 3, 4], b'b': []},
    num_classes=4,
  )
  # Length of the id, id, number of images, labels, shape, pixels.
  data = struct.pack('<q1s', 1, b'a') + struct.pack('<q3i', 3, 3, 1, 0)
  data += b'(2, 3, 1)' + bytes([*range(6, 12), *range(18, 30)])
  data += struct.pack('<q1s', 1, b'c') + struct.pack('<qi', 1, 2)
  data += b'(2, 3, 1)' + bytes(range(30, 36))
  assert clients.fingerprint == hashlib.sha256(data).hexdigest()
