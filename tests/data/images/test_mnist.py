"""MNIST's files, with and without writers: small ones, then the real ones."""

import gzip

import numpy as np
import pytest

from tff_fedfish.data.images.mnist import (
  read_fashion_mnist,
  read_idx,
  read_mnist,
  read_mnist_by_writer,
)
from tff_fedfish.errors import UserError

_TRAIN_WRITERS = [(3, 512), (1, 9), (3, 9), (0, 512), (7, 9)]
# The third row is of an image that MNIST has not.
_TEST_WRITERS = [(9, 10), (3, 2000), (5, 512)]


@pytest.fixture
def directory(tmp_path, write_mnist, write_writers):
  write_mnist(tmp_path)
  write_writers(tmp_path, _TRAIN_WRITERS, _TEST_WRITERS)
  return tmp_path


class TestFourFiles:
  def test_images_and_labels(self, tmp_path, write_mnist):
    sides = write_mnist(tmp_path)
    for found, (images, labels) in zip(
      read_fashion_mnist(tmp_path), sides, strict=True
    ):
      assert found.images.dtype == np.uint8
      assert found.images.shape == (len(labels), 3, 2, 1)
      np.testing.assert_array_equal(found.images[..., 0], images)
      assert found.labels.dtype == np.int32
      assert found.labels.tolist() == labels

  def test_mnist_is_read_as_fashion_mnist(self, tmp_path, write_mnist):
    write_mnist(tmp_path)
    for mine, other in zip(
      read_mnist(tmp_path), read_fashion_mnist(tmp_path), strict=True
    ):
      np.testing.assert_array_equal(mine.images, other.images)
      np.testing.assert_array_equal(mine.labels, other.labels)
    (tmp_path / 'train-labels-idx1-ubyte').unlink()
    with pytest.raises(
      UserError, match=r"^Corpus 'mnist' requires .* Get them from https://yann"
    ):
      read_mnist(tmp_path)

  def test_missing_files(self, tmp_path, write_mnist):
    write_mnist(tmp_path)
    (tmp_path / 't10k-labels-idx1-ubyte.gz').unlink()
    with pytest.raises(
      UserError,
      match=r"^Corpus 'fashion_mnist' requires train-images-idx3-ubyte\[.gz\], "
      r'.*t10k-labels-idx1-ubyte\[.gz\] in .*, but found only '
      't10k-images-idx3-ubyte, train-images-idx3-ubyte.gz, '
      'train-labels-idx1-ubyte. Get them from https://github.com/zalando',
    ):
      read_fashion_mnist(tmp_path)

  def test_no_files(self, tmp_path):
    with pytest.raises(UserError, match='but the directory is empty. Get them'):
      read_fashion_mnist(tmp_path)
    with pytest.raises(UserError, match=r'cannot be read \(No such file'):
      read_fashion_mnist(tmp_path / 'nowhere')

  def test_many_other_files(self, tmp_path):
    for number in range(13):
      (tmp_path / f'{number:02}').touch()
    with pytest.raises(UserError, match='only 00, 01, .*, 09 and 3 more. Get'):
      read_fashion_mnist(tmp_path)

  def test_labels_of_other_images(self, tmp_path, write_mnist, write_idx):
    write_mnist(tmp_path)
    write_idx(tmp_path / 'train-labels-idx1-ubyte', [1, 2, 3])
    with pytest.raises(
      UserError,
      match="train-labels-idx1-ubyte' must hold a label for each of the 5 "
      "images in 'train-images-idx3-ubyte.gz', but it holds 3",
    ):
      read_fashion_mnist(tmp_path)

  def test_label_out_of_range(self, tmp_path, write_mnist):
    write_mnist(tmp_path, test_labels=(9, 10))
    with pytest.raises(
      UserError, match="t10k-labels.*' must hold labels from 0 to 9, .* 10. C"
    ):
      read_fashion_mnist(tmp_path)


class TestWriters:
  def test_clients_are_writers(self, directory):
    clients = read_mnist_by_writer(directory)
    assert clients.client_ids == [
      b'writer-0009',
      b'writer-0010',
      b'writer-0512',
      b'writer-2000',
    ]
    assert clients.held_out == (b'writer-0010', b'writer-2000')
    assert sum(map(len, clients.client_rows.values())) == len(clients.labels)
    train, test = read_fashion_mnist(directory)
    rows = clients.sequences(b'writer-0009')
    assert rows.labels.tolist() == [1, 3, 7]
    np.testing.assert_array_equal(rows.images, train.images[[1, 2, 4]])
    rows = clients.sequences(b'writer-2000')
    assert rows.labels.tolist() == [3]
    np.testing.assert_array_equal(rows.images, test.images[[1]])

  def test_classes_must_agree(self, directory, write_writers):
    pairs = [(3, 512), (1, 9), (5, 9), (0, 512), (7, 9)]
    write_writers(directory, pairs, _TEST_WRITERS)
    with pytest.raises(
      UserError,
      match="qmnist-train-labels-idx2-int.gz' must agree with 'train-labels-"
      "idx1-ubyte' on every class, but in row 2 it has 5 and not 3",
    ):
      read_mnist_by_writer(directory)

  def test_no_writer_on_both_sides(self, directory, write_writers):
    write_writers(directory, _TRAIN_WRITERS, [(9, 10), (3, 512)])
    with pytest.raises(
      UserError,
      match="qmnist-test-labels-idx2-int.gz' must name other writers than "
      "'qmnist-train-labels-idx2-int.gz', but both name writer-0512",
    ):
      read_mnist_by_writer(directory)

  def test_too_few_rows(self, directory, write_writers):
    write_writers(directory, _TRAIN_WRITERS[:4], _TEST_WRITERS)
    with pytest.raises(
      UserError,
      match='must hold 8 columns and a row for each of the 5 labels in '
      "'train-labels-idx1-ubyte', but it holds 8 columns and 4 rows",
    ):
      read_mnist_by_writer(directory)

  def test_too_few_columns(self, directory, write_idx):
    path = directory / 'qmnist-test-labels-idx2-int.gz'
    write_idx(path, np.zeros((2, 3)), dtype='int32')
    with pytest.raises(UserError, match='8 columns .* holds 3 columns and 2 r'):
      read_mnist_by_writer(directory)

  def test_missing_writers(self, tmp_path, write_mnist):
    write_mnist(tmp_path)
    with pytest.raises(
      UserError,
      match=r'qmnist-train-labels-idx2-int\[.gz\], qmnist-test-labels-idx2-int'
      r'\[.gz\] in .* Get the writers from https://github.com/facebookresearch',
    ):
      read_mnist_by_writer(tmp_path)


class TestRealFiles:
  def test_mnist_by_writer(self, shared_data):
    clients = read_mnist_by_writer(shared_data('mnist_by_writer'))
    sizes = {
      client_id: len(rows) for client_id, rows in clients.client_rows.items()
    }
    held_out = set(clients.held_out)
    train = [size for i, size in sizes.items() if i not in held_out]
    # As the corpus's README counts them.
    assert (len(train), sum(train)) == (539, 60_000)
    assert (min(train), np.median(train), max(train)) == (19, 116, 131)
    assert (len(held_out), sum(sizes[i] for i in held_out)) == (297, 10_000)
    assert clients.image_shape == (28, 28, 1)
    # LeCun's files begin with a 5 and a 7.
    assert clients.labels[[0, 60_000]].tolist() == [5, 7]

  def test_fashion_mnist(self, shared_data):
    train, test = read_fashion_mnist(shared_data('fashion_mnist'))
    assert train.images.shape == (60_000, 28, 28, 1)
    assert test.images.shape == (10_000, 28, 28, 1)
    assert np.bincount(train.labels).tolist() == [6_000] * 10
    assert np.bincount(test.labels).tolist() == [1_000] * 10

  def test_a_download_that_stopped(self, shared_data, tmp_path):
    whole = shared_data('fashion_mnist') / 'train-labels-idx1-ubyte.gz'
    path = tmp_path / 'train-labels-idx1-ubyte'
    path.write_bytes(gzip.decompress(whole.read_bytes())[:50_000])
    # 4 + 4 bytes of header.
    with pytest.raises(UserError, match='60000 values in 60000 .* only 49992'):
      read_idx(path, dtype='uint8', num_dimensions=1)
    path.with_suffix('.gz').write_bytes(whole.read_bytes()[:20_000])
    with pytest.raises(UserError, match="ubyte.gz' must be a whole, readable"):
      read_idx(path.with_suffix('.gz'), dtype='uint8', num_dimensions=1)
