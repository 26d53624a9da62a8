"""Published image files: their contents, and refusals of damaged ones."""

import gzip

import numpy as np
import pytest

from tff_fedfish.data.images.cifar import read_cifar
from tff_fedfish.data.images.idx_files import (
  read_idx,
  read_mnist,
  read_mnist_by_writer,
)
from tff_fedfish.errors import UserError

# Two zeros, type 0x08, two dimensions, 2 x 3, six values.
_IDX = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])


@pytest.mark.parametrize('pack', [bytes, gzip.compress])
def test_idx_by_hand(tmp_path, pack):
  path = tmp_path / 'a'
  path.write_bytes(pack(_IDX))
  array = read_idx(path, dtype='uint8', num_dimensions=2)
  assert array.dtype == np.uint8
  assert array.tolist() == [[1, 2, 3], [4, 5, 255]]
  # 0x00000102 = 258, and -1.
  ints = bytes([0, 0, 12, 1, 0, 0, 0, 2, 0, 0, 1, 2]) + b'\xff' * 4
  path.write_bytes(pack(ints))
  array = read_idx(path, dtype='int32', num_dimensions=1)
  assert array.dtype == np.dtype('int32') and array.dtype.isnative
  assert array.tolist() == [258, -1]
  path.write_bytes(pack(bytes([0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3])))
  assert read_idx(path, dtype='uint8', num_dimensions=2).shape == (0, 3)


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    (b'\x89PNG\r\n', "'89 50 4e 47 0d 0a' in 6 bytes"),
    (b'\0\0\x0c\x02' + _IDX[4:], "'00 00 0c 02 .*' in 18 bytes"),
    (_IDX[:-2], "00 00 00 03' in 16 bytes"),
    (_IDX + b'\0', "00 00 00 03' in 19 bytes"),
    # A header by itself must not make us reserve 2^64 bytes.
    (b'\0\0\x08\x02' + b'\xff' * 8 + b'ab', "ff' in 14 bytes"),
    (gzip.compress(_IDX, mtime=0)[:-9], 'end-of-stream marker'),
  ],
)
def test_damaged_files(tmp_path, data, words):
  path = tmp_path / 'a'
  path.write_bytes(data)
  with pytest.raises(UserError, match=f"a' must be .*{words}"):
    read_idx(path, dtype='uint8', num_dimensions=2)


@pytest.mark.parametrize('corpus', ['mnist', 'fashion_mnist'])
def test_mnist(tmp_path, write_mnist, corpus):
  sides = write_mnist(tmp_path)
  for side, (images, labels) in zip(
    read_mnist(corpus, tmp_path), sides, strict=True
  ):
    assert side.images.dtype == np.uint8
    np.testing.assert_array_equal(side.images, images[..., np.newaxis])
    assert side.labels.dtype == np.int32
    assert side.labels.tolist() == labels


def test_missing_file(tmp_path, write_mnist):
  write_mnist(tmp_path)
  (tmp_path / 't10k-labels-idx1-ubyte.gz').unlink()
  with pytest.raises(
    UserError,
    match="^Corpus 'fashion_mnist' requires train-images-idx3-ubyte, .*, but "
    't10k-labels-idx1-ubyte is not there. Get them from https://github.com/z',
  ):
    read_mnist('fashion_mnist', tmp_path)


_TRAIN_WRITERS = [(3, 512), (1, 9), (3, 9), (0, 512), (7, 9)]
# The third row is of an image that MNIST has not.
_TEST_WRITERS = [(9, 10), (3, 2000), (5, 512)]


def test_clients_are_writers(tmp_path, write_mnist, write_writers):
  (train, _), (test, _) = write_mnist(tmp_path)
  write_writers(tmp_path, _TRAIN_WRITERS, _TEST_WRITERS)
  clients = read_mnist_by_writer(tmp_path)
  assert clients.held_out == (b'writer-0010', b'writer-2000')
  assert clients.client_ids == sorted(
    [*clients.held_out, b'writer-0009', b'writer-0512']
  )
  assert sum(map(len, clients.client_rows.values())) == len(clients.labels)
  rows = clients.sequences(b'writer-0009')
  assert rows.labels.tolist() == [1, 3, 7]
  np.testing.assert_array_equal(rows.images[..., 0], train[[1, 2, 4]])
  rows = clients.sequences(b'writer-2000')
  assert rows.labels.tolist() == [3]
  np.testing.assert_array_equal(rows.images[..., 0], test[[1]])


# By the owner's words: labels, then planes of red, green and blue.
def _record(labels, pixels):
  planes = [pixels[:, :, channel].astype(np.uint8) for channel in range(3)]
  return bytes(labels) + b''.join(plane.tobytes() for plane in planes)


def _pixels(seed):
  return np.random.RandomState(seed).randint(256, size=(32, 32, 3))


def test_cifar10(tmp_path):
  for i in range(1, 7):
    name = 'test_batch.bin' if i == 6 else f'data_batch_{i}.bin'
    # File i has i records of class i.
    records = [_record([i], _pixels(10 * i + j)) for j in range(i)]
    (tmp_path / name).write_bytes(b''.join(records))
  train, test = read_cifar('cifar10', tmp_path)
  assert train.images.dtype == np.uint8 and train.labels.dtype == np.int32
  assert train.labels.tolist() == [1, 2, 2, 3, 3, 3, *[4] * 4, *[5] * 5]
  assert test.labels.tolist() == [6] * 6
  np.testing.assert_array_equal(train.images[2], _pixels(21))


def test_cifar100(tmp_path):
  (tmp_path / 'train.bin').write_bytes(
    _record([19, 99], _pixels(0)) + _record([4, 0], _pixels(1))
  )
  (tmp_path / 'test.bin').write_bytes(_record([7, 8], _pixels(2)))
  train, test = read_cifar('cifar100', tmp_path)
  # The second byte is the class; the first its superclass.
  assert train.labels.tolist() == [99, 0]
  assert test.labels.tolist() == [8]
  np.testing.assert_array_equal(train.images, [_pixels(0), _pixels(1)])
  (tmp_path / 'train.bin').write_bytes(_record([1, 100], _pixels(0)))
  with pytest.raises(
    UserError, match="train.bin' must hold labels from 0 to 99, but it holds 10"
  ):
    read_cifar('cifar100', tmp_path)


def test_real_mnist_by_writer(shared_data):
  clients = read_mnist_by_writer(shared_data('mnist_by_writer'))
  sizes = {i: len(rows) for i, rows in clients.client_rows.items()}
  train = [sizes[i] for i in sizes.keys() - clients.held_out]
  # As the corpus's README counts them.
  assert (len(train), sum(train)) == (539, 60_000)
  assert (min(train), np.median(train), max(train)) == (19, 116, 131)
  assert len(clients.held_out) == 297
  assert sum(sizes[i] for i in clients.held_out) == 10_000
  assert clients.image_shape == (28, 28, 1)
  # LeCun's files begin with a 5 and a 7.
  assert clients.labels[[0, 60_000]].tolist() == [5, 7]
