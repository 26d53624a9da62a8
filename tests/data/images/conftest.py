"""Files of image corpora, written as their owners do, but small."""

import gzip

import numpy as np
import pytest
import small_image_runs


def _write_idx(path, array, dtype='uint8'):
  small_image_runs.write_idx(path, np.asarray(array), dtype)
  if path.suffix == '.gz':
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.fixture(scope='session')
def write_mnist():
  """Writes MNIST's four files and returns (images, labels), train and test.

  Images are 3 x 2 pixels. One file of each kind is packed.
  """

  def write(directory, train_labels=(3, 1, 3, 0, 7), test_labels=(9, 3)):
    sides = []
    for side, labels in (('train', train_labels), ('t10k', test_labels)):
      random = np.random.RandomState(len(labels))
      images = random.randint(256, size=(len(labels), 3, 2))
      gz = '.gz' if side == 'train' else ''
      _write_idx(directory / f'{side}-images-idx3-ubyte{gz}', images)
      gz = '' if side == 'train' else '.gz'
      _write_idx(directory / f'{side}-labels-idx1-ubyte{gz}', labels)
      sides.append((images, list(labels)))
    return sides

  return write


@pytest.fixture(scope='session')
def write_writers():
  """Writes QMNIST's two label files from (class, writer) pairs."""

  def write(directory, train, test):
    for side, pairs in (('train', train), ('test', test)):
      rows = np.zeros((len(pairs), 8), int)
      rows[:, [0, 2]] = pairs
      # What must not be taken for the writer.
      rows[:, 1] = 4
      rows[:, 3] = 77
      _write_idx(
        directory / f'qmnist-{side}-labels-idx2-int.gz', rows, dtype='int32'
      )

  return write
