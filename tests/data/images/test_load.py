"""Corpora by name: their own clients, partitions, and what is held out."""

import numpy as np
import pytest
import tff_databases
from tff_databases import encode

from tff_fedfish.data.images.label_draws import label_histograms
from tff_fedfish.data.images.load import load_image_corpus
from tff_fedfish.data.images.partitions import Partition

# Class 0 and class 1, 12 and 6 in training, 4 and 4 in testing.
_TRAIN = [0] * 12 + [1] * 6
_TEST = [0, 1] * 4


def _partition(scheme='latent_distributions', num_clients=4, **parameters):
  return Partition(
    scheme=scheme,
    num_clients=num_clients,
    seed=1,
    parameters=tuple(parameters.items()),
  )


def _open(directory, name='fashion_mnist', **changes):
  arguments = dict(partition=_partition()) | changes
  return load_image_corpus(name, directory, **arguments)


@pytest.fixture
def fashion(tmp_path, write_mnist):
  write_mnist(tmp_path, _TRAIN, _TEST)
  return tmp_path


def _histograms(clients):
  return label_histograms(
    clients.labels, clients.client_rows.values(), clients.num_classes
  )


def test_clients_of_a_partition(fashion):
  clients = _open(fashion)
  names = [b'client-000%d' % number for number in range(4)]
  assert clients.client_ids == [*names, b'test']
  # Classes 0 and 1 in turn: 12 / 2 and 6 / 2.
  histograms = _histograms(clients)[:4, :2].tolist()
  assert histograms == [[6, 0], [0, 3], [6, 0], [0, 3]]
  assert clients.held_out == (b'test',)
  assert clients.sequences(b'test').labels.tolist() == _TEST
  assert clients.twins is None
  assert (clients.num_classes, clients.image_shape) == (10, (3, 2, 1))


def test_matching_tests(fashion, write_mnist):
  clients = _open(fashion, held_out='matching')
  # Each class's 4 tests are divided as its training examples are: 1 : 1.
  tests = _histograms(clients)[4:, :2].tolist()
  assert tests == [[2, 0], [0, 2], [2, 0], [0, 2]]
  assert clients.client_ids[4:] == list(clients.held_out)
  assert clients.twins == {
    b'client-000%d' % number: b'test-000%d' % number for number in range(4)
  }
  # Images follow their labels.
  sides = write_mnist(fashion, _TRAIN, _TEST)
  for prefix, (images, labels) in zip((b'c', b't'), sides, strict=True):
    pairs = [
      (image.tobytes(), int(label))
      for client_id in clients.client_ids
      if client_id.startswith(prefix)
      for rows in [clients.sequences(client_id)]
      for image, label in zip(rows.images, rows.labels, strict=True)
    ]
    expected = zip(images.astype(np.uint8), labels, strict=True)
    assert sorted(pairs) == sorted((i.tobytes(), n) for i, n in expected)


def test_empty_clients_are_left_out(fashion):
  # 20 shards of ten classes, of which eight have no example: at most four
  # clients have shards of the two others.
  by = _partition('pathological_shards', 10, shards_per_client=2)
  clients = _open(fashion, partition=by, held_out='matching')
  num_clients = len(clients.client_ids) - len(clients.held_out)
  assert 2 <= num_clients <= 4
  assert len(clients.held_out) == len(clients.twins) == num_clients
  assert _histograms(clients).sum() == len(clients.labels)


def test_ids_sort_as_clients_are_numbered(tmp_path, write_mnist):
  write_mnist(tmp_path, [0] * 10_001, [0])
  clients = _open(tmp_path, partition=_partition(num_clients=10_001))
  assert clients.client_ids[9:11] == [b'client-00009', b'client-00010']
  assert clients.client_ids[10_000] == b'client-10000'


def test_cifar100_by_client_and_plain(tmp_path):
  # Both versions side by side.
  tff_databases.write(
    tmp_path / 'cifar100.sqlite',
    [
      (side, '0', encode(image=[1] * 3072, label=1, coarse_label=0))
      for side in ('train', 'test')
    ],
  )
  for side in ('train', 'test'):
    # Fine classes 0 to 9, two of each coarse class.
    records = [bytes([i // 2, i]) + bytes(3072) for i in range(10)]
    (tmp_path / f'{side}.bin').write_bytes(b''.join(records))
  clients = load_image_corpus('cifar100', tmp_path)
  assert clients.client_ids == [b'0', b'test-0']
  by = _partition('per_client_sampling', 3, alpha=1)
  clients = _open(tmp_path, 'cifar100', partition=by)
  sizes = [len(clients.client_rows[i]) for i in clients.client_ids]
  assert sizes == [3, 3, 3, 10]
  assert clients.num_classes == 100
