"""EMNIST and CIFAR-100 in TFF's SQLite files."""

import numpy as np
import pytest
import tff_databases
from tff_databases import encode

from tff_fedfish.data.images.published_clients import (
  read_published_clients as _read,
)
from tff_fedfish.errors import UserError


def _pixels(seed):
  """Returns an EMNIST image as uint8; TFF has it divided by 255."""
  return np.random.RandomState(seed).randint(256, size=(28, 28))


# (split, client, label). Clients are mixed, as in TFF's file; f2 is on both
# sides.
_ROWS = [
  ('all_train', 'f2', 61),
  ('all_train', 'f1', 4),
  ('digits_only_train', 'f1', 4),
  ('all_test', 'f2', 35),
  ('all_train', 'f2', 10),
  ('digits_only_test', 'f9', 9),
]


@pytest.fixture
def database(tmp_path):
  path = tmp_path / 'emnist_all.sqlite'
  tff_databases.write(
    path,
    [
      (split, client, encode(pixels=_pixels(i) / 255, label=label))
      for i, (split, client, label) in enumerate(_ROWS)
    ],
  )
  return path


def test_database(database):
  clients = _read('emnist_by_writer', database.parent)
  assert clients.client_ids == [b'f1', b'f2', b'test-f2']
  assert clients.held_out == (b'test-f2',)
  assert (clients.num_classes, clients.image_shape) == (62, (28, 28, 1))
  for client_id, numbers, labels in (
    (b'f1', [1], [4]),
    (b'f2', [0, 4], [61, 10]),
    (b'test-f2', [3], [35]),
  ):
    rows = clients.sequences(client_id)
    assert rows.labels.tolist() == labels
    # 255 * (x / 255) in float32 is x again after rounding.
    np.testing.assert_array_equal(
      rows.images[..., 0], [_pixels(number) for number in numbers]
    )


def test_cifar100_has_ints(tmp_path):
  pixels = np.random.RandomState(0).randint(256, size=(2, 32, 32, 3))
  # Ids of TFF's two splits coincide.
  tff_databases.write(
    tmp_path / 'cifar100.sqlite',
    [
      (split, '7', encode(image=image, label=label, coarse_label=3))
      for split, image, label in zip(
        ('train', 'test'), pixels, (99, 5), strict=True
      )
    ],
  )
  clients = _read('cifar100', tmp_path)
  assert clients.client_ids == [b'7', b'test-7']
  assert clients.num_classes == 100
  np.testing.assert_array_equal(clients.sequences(b'7').images, pixels[:1])
  np.testing.assert_array_equal(clients.sequences(b'test-7').images, pixels[1:])
  assert clients.labels.tolist() == [99, 5]


def test_a_database_that_tff_wrote(tmp_path):
  import tensorflow as tf
  import tensorflow_federated as tff

  def client_dataset(client_id):
    seeds = [1, 2] if client_id == 'a' else [3]
    return tf.data.Dataset.from_tensor_slices(
      dict(
        label=tf.constant(seeds),
        pixels=tf.constant([_pixels(i) / 255 for i in seeds], tf.float32),
      )
    )

  tff.simulation.datasets.save_to_sql_client_data(
    ['a', 'b'],
    client_dataset,
    str(tmp_path / 'emnist_all.sqlite'),
    split_names_by_client_id={'a': 'all_train', 'b': 'all_test'},
  )
  clients = _read('emnist_by_writer', tmp_path)
  assert clients.client_ids == [b'a', b'test-b']
  rows = clients.sequences(b'a')
  assert rows.labels.tolist() == [1, 2]
  np.testing.assert_array_equal(rows.images[..., 0], [_pixels(1), _pixels(2)])


@pytest.mark.parametrize(
  ('corpus', 'words'),
  [
    ('emnist_by_writer', 'lzma from https://storage.*-public, and unpack it: '),
    ('cifar100', r'lzma`\. Without it .cifar100. requires a `partition`\.$'),
  ],
)
def test_missing_database(tmp_path, corpus, words):
  with pytest.raises(UserError, match=words):
    _read(corpus, tmp_path)


@pytest.mark.parametrize(
  'features',
  [
    dict(label=1),
    dict(pixels=[0.5] * 784),
    dict(pixels=[0.5] * 783, label=1),
    dict(pixels=[1.5] * 784, label=1),
    dict(pixels=[256] * 784, label=1),
    dict(pixels=[0.5] * 784, label=[1, 2]),
    dict(pixels=[0.5] * 784, label=62),
    None,
  ],
)
def test_other_examples(tmp_path, features):
  data = b'\xff\xff' if features is None else encode(**features)
  good = encode(pixels=[0.5] * 784, label=1)
  rows = [('all_train', 'a', good), ('all_train', 'a', data)]
  tff_databases.write(tmp_path / 'emnist_all.sqlite', rows)
  with pytest.raises(
    UserError,
    match="sqlite' must hold examples with `pixels` of 28 x 28 x 1, from 0 to "
    "1 or 0 to 255, and one `label` from 0 to 61, but the split 'all_train' ",
  ):
    _read('emnist_by_writer', tmp_path)
