"""Corpora by name: their own clients, partitions, and what is held out."""

import subprocess
import sys

import numpy as np
import pytest

from tff_fedfish.data.images import loading
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.data.images.label_draws import label_histograms
from tff_fedfish.data.images.loading import load_image_corpus
from tff_fedfish.data.images.partitions import Partition
from tff_fedfish.errors import UserError

# Class 0 and class 1, 12 and 6 in training, 4 and 4 in testing.
_TRAIN = [0] * 12 + [1] * 6
_TEST = [0, 1] * 4
_SHARDS = Partition(
  scheme='pathological_shards', num_clients=10, seed=1, shards_per_client=2
)


@pytest.fixture
def fashion(tmp_path, write_mnist):
  write_mnist(tmp_path, _TRAIN, _TEST)
  return tmp_path


def _open(directory, name='fashion_mnist', **changes):
  return load_image_corpus(
    name,
    directory,
    **(
      dict(
        partition=Partition(
          scheme='latent_distributions', num_clients=4, seed=1
        )
      )
      | changes
    ),
  )


def _histograms(clients):
  return label_histograms(
    clients.labels, clients.client_rows.values(), clients.num_classes
  )


def _num_unassigned(clients):
  """Returns how many images no client has."""
  return len(clients.labels) - _histograms(clients).sum()


def test_clients_of_a_partition(fashion):
  clients = _open(fashion)
  assert clients.client_ids == [
    b'client-0000',
    b'client-0001',
    b'client-0002',
    b'client-0003',
    b'test',
  ]
  # Classes 0 and 1 in turn: 12 / 2 and 6 / 2.
  assert _histograms(clients)[:4, :2].tolist() == [
    [6, 0],
    [0, 3],
    [6, 0],
    [0, 3],
  ]
  assert clients.held_out == (b'test',)
  assert clients.sequences(b'test').labels.tolist() == _TEST
  assert _num_unassigned(clients) == 0
  assert (clients.num_classes, clients.image_shape) == (10, (3, 2, 1))
  # Not of `test`, which has images of both.
  assert clients.clusters == {b'client-000%d' % i: i % 2 for i in range(4)}


def test_images_follow_their_labels(fashion):
  from tff_fedfish.data.images.mnist import read_fashion_mnist

  train, test = read_fashion_mnist(fashion)
  clients = _open(fashion, held_out='matching')
  for prefix, side in ((b'client', train), (b'test', test)):
    pairs = sorted(
      (image.tobytes(), int(label))
      for client_id in clients.client_ids
      if client_id.startswith(prefix)
      for rows in [clients.sequences(client_id)]
      for image, label in zip(rows.images, rows.labels, strict=True)
    )
    expected = zip(side.images, side.labels, strict=True)
    assert pairs == sorted((i.tobytes(), int(label)) for i, label in expected)


def test_matching_tests(fashion):
  clients = _open(fashion, held_out='matching')
  histograms = _histograms(clients)
  assert len(clients.held_out) == 4
  # Each class's 4 tests are divided as its training examples are: 1 : 1.
  assert histograms[4:, :2].tolist() == [[2, 0], [0, 2], [2, 0], [0, 2]]
  assert clients.client_ids[4:] == list(clients.held_out)
  assert clients.held_out[3] == b'test-0003'


def test_what_a_partition_drops_is_nobodys(fashion):
  by = Partition(scheme='per_client_sampling', num_clients=4, seed=2, alpha=1.0)
  clients = _open(fashion, partition=by)
  # 18 = 4 * 4 + 2.
  assert [len(rows) for rows in clients.client_rows.values()] == [*[4] * 4, 8]
  assert _num_unassigned(clients) == 2


def test_empty_clients_are_left_out(fashion):
  # 20 shards of ten classes, of which eight have no example: at most four
  # clients have shards of the two others.
  clients = _open(fashion, partition=_SHARDS, held_out='matching')
  num_clients = len(clients.client_ids) - len(clients.held_out)
  assert 2 <= num_clients <= 4
  assert len(clients.held_out) == num_clients
  assert clients.clusters is None
  assert _num_unassigned(clients) == 0


def test_ids_sort_as_clients_are_numbered(tmp_path, write_mnist):
  write_mnist(tmp_path, [0] * 10_001, [0])
  by = Partition(scheme='latent_distributions', num_clients=10_001, seed=1)
  clients = _open(tmp_path, partition=by)
  assert clients.client_ids[9:11] == [b'client-00009', b'client-00010']
  assert clients.client_ids[10_000] == b'client-10000'


def test_mnist_by_writer(tmp_path, write_mnist, write_writers):
  write_mnist(tmp_path, [1, 2], [3])
  write_writers(tmp_path, [(1, 8), (2, 8)], [(3, 9)])
  clients = load_image_corpus('mnist_by_writer', tmp_path)
  assert clients.client_ids == [b'writer-0008', b'writer-0009']


def test_emnist(tmp_path, example, write_database):
  write_database(
    tmp_path / 'emnist_all.sqlite',
    [
      (f'all_{side}', 'a', example(pixels=[0.5] * 784, label=40))
      for side in ('train', 'test')
    ],
  )
  clients = load_image_corpus('emnist_by_writer', tmp_path)
  assert clients.num_classes == 62
  assert clients.labels.tolist() == [40, 40]


class TestCifar100:
  @pytest.fixture
  def directory(self, tmp_path, example, write_database):
    """Both versions side by side: by client, and plain."""
    write_database(
      tmp_path / 'cifar100.sqlite',
      [
        (side, '0', example(image=[1] * 3072, label=1, coarse_label=0))
        for side in ('train', 'test')
      ],
    )
    for side in ('train', 'test'):
      # Fine classes 0 to 9, two of each coarse class.
      records = [bytes([i // 2, i]) + bytes(3072) for i in range(10)]
      (tmp_path / f'{side}.bin').write_bytes(b''.join(records))
    return tmp_path

  def test_by_client_without_a_partition(self, directory):
    clients = load_image_corpus('cifar100', directory)
    assert clients.client_ids == [b'0', b'test-0']

  def test_plain_with_a_partition(self, directory):
    by = Partition(scheme='per_client_sampling', num_clients=3, seed=1, alpha=1)
    clients = _open(directory, 'cifar100', partition=by)
    sizes = [len(clients.client_rows[i]) for i in clients.client_ids]
    assert sizes == [3, 3, 3, 10]
    assert (clients.num_classes, _num_unassigned(clients)) == (100, 1)


def test_cifar10(tmp_path):
  for name in (*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch'):
    (tmp_path / f'{name}.bin').write_bytes(b'\7' + bytes(3072))
  by = Partition(scheme='latent_distributions', num_clients=2, seed=1)
  clients = _open(tmp_path, 'cifar10', partition=by)
  assert _histograms(clients)[:, 7].tolist() == [3, 2, 1]
  assert clients.image_shape == (32, 32, 3)


@pytest.mark.parametrize(
  ('name', 'changes', 'words'),
  [
    (
      'digits',
      {},
      'must be one of cifar10, cifar100, emnist_by_writer, fashion_mnist, '
      "image_folder, mnist, mnist_by_writer, found 'digits'",
    ),
    (
      'cifar10',
      dict(partition=None),
      "'cifar10' requires a `partition`, as it has no clients of its own",
    ),
    (
      'mnist_by_writer',
      {},
      "'mnist_by_writer' takes no `partition`, .*'latent_distributions' is giv",
    ),
    (
      'cifar10',
      dict(held_out='test'),
      "must be 'whole' or 'matching', found 'test'",
    ),
    (
      'cifar100',
      dict(partition=None, held_out='matching'),
      "read only with a `partition`, as clients of 'cifar100' are held out by",
    ),
  ],
)
def test_arguments_that_do_not_fit(tmp_path, name, changes, words):
  # Before any file is looked for: the directory is empty.
  with pytest.raises(ValueError, match=words):
    _open(tmp_path, name, **changes)


def test_every_corpus_is_read_as_its_facts_say():
  for name, corpus in IMAGE_CORPORA.items():
    assert (name in loading._CLIENTS_READERS) == (corpus.clients != 'partition')
    assert (name in loading._SIDES_READERS) == (corpus.clients != 'own')


@pytest.mark.parametrize('name', sorted(IMAGE_CORPORA))
def test_no_files(tmp_path, name):
  natural = name.endswith('by_writer') or name == 'image_folder'
  changes = dict(partition=None) if natural else {}
  with pytest.raises(UserError, match=f"^Corpus '{name}' requires .* is empty"):
    _open(tmp_path, name, **changes)


def test_real_fashion_mnist(shared_data):
  by = Partition(
    scheme='per_class_over_clients', num_clients=20, seed=3, alpha=0.5
  )
  clients = _open(
    shared_data('fashion_mnist'), partition=by, held_out='matching'
  )
  histograms = _histograms(clients)
  train, test = histograms[:20], histograms[20:]
  assert train.sum(axis=0).tolist() == [6_000] * 10
  assert test.sum(axis=0).tolist() == [1_000] * 10
  assert train.sum(axis=1).min() >= 10
  # A sixth of the training examples of each class, but for rounding.
  assert np.abs(test - train / 6).max() < 1
  assert _num_unassigned(clients) == 0


def test_real_mnist(shared_data):
  by = Partition(
    scheme='pathological_shards', num_clients=15, seed=3, shards_per_client=2
  )
  # QMNIST's files, which lie beside, are not read.
  directory = shared_data('mnist_by_writer')
  clients = _open(directory, 'mnist', partition=by, held_out='matching')
  histograms = _histograms(clients)
  assert (histograms[:15] > 0).sum(axis=1).max() <= 2
  # Published: 5,923 zeros and 6,742 ones to train on, 980 and 1,135 to test.
  assert histograms[:15].sum(axis=0)[:2].tolist() == [5_923, 6_742]
  assert histograms[15:].sum(axis=0)[:2].tolist() == [980, 1_135]
  of_writers = load_image_corpus('mnist_by_writer', directory)
  np.testing.assert_array_equal(clients.images, of_writers.images)


def test_needs_no_tensorflow():
  code = (
    'import sys, tff_fedfish.data.images.loading; '
    'print([m for m in ("tensorflow", "tensorflow_federated", "apache_beam", '
    '"h5py") if m in sys.modules])'
  )
  found = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert found.stdout == '[]\n'
