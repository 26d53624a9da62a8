"""CIFAR's binary files."""

import numpy as np
import pytest

from tff_fedfish.data.images import cifar
from tff_fedfish.errors import UserError

_NAMES = {
  'cifar10': [f'data_batch_{i}.bin' for i in range(1, 6)] + ['test_batch.bin'],
  'cifar100': ['train.bin', 'test.bin'],
}


def _record(labels, pixels):
  """Returns a record by the owner's words: planes of red, green and blue."""
  return (
    bytes(labels)
    + np.concatenate([pixels[:, :, channel].ravel() for channel in range(3)])
    .astype(np.uint8)
    .tobytes()
  )


def _pixels(seed):
  return np.random.RandomState(seed).randint(256, size=(32, 32, 3))


def _cifar10():
  """Returns file name -> contents; batch i has i records of class i."""
  return {
    name: b''.join(_record([i], _pixels(10 * i + j)) for j in range(i))
    for i, name in enumerate(_NAMES['cifar10'], start=1)
  }


def _cifar100():
  return {
    'train.bin': _record([19, 99], _pixels(0)) + _record([4, 0], _pixels(1)),
    'test.bin': _record([7, 8], _pixels(2)),
  }


def _write(directory, files):
  directory.mkdir(exist_ok=True)
  for name, data in files.items():
    (directory / name).write_bytes(data)


def test_planes_become_channels(tmp_path):
  _write(tmp_path, _cifar100())
  train, test = cifar.read_cifar(cifar.CIFAR100, tmp_path)
  assert train.images.dtype == np.uint8 and train.labels.dtype == np.int32
  np.testing.assert_array_equal(train.images, [_pixels(0), _pixels(1)])
  np.testing.assert_array_equal(test.images, [_pixels(2)])
  # The second byte is the class; the first its superclass.
  assert train.labels.tolist() == [99, 0]
  assert test.labels.tolist() == [8]


def test_batches_are_joined_in_order(tmp_path):
  _write(tmp_path, _cifar10())
  train, test = cifar.read_cifar(cifar.CIFAR10, tmp_path)
  # Batch i has i records of class i; the test batch is the sixth.
  assert train.labels.tolist() == [1, 2, 2, 3, 3, 3, *[4] * 4, *[5] * 5]
  assert test.labels.tolist() == [6] * 6
  np.testing.assert_array_equal(train.images[2], _pixels(21))


def test_the_folder_that_it_unpacks_to(tmp_path):
  (tmp_path / 'cifar-100-binary').mkdir()
  _write(tmp_path / 'cifar-100-binary', _cifar100())
  train, _ = cifar.read_cifar(cifar.CIFAR100, tmp_path)
  assert train.labels.tolist() == [99, 0]


def test_an_archive_is_to_be_unpacked(tmp_path):
  (tmp_path / 'cifar-100-binary.tar.gz').touch()
  with pytest.raises(
    UserError,
    match="^Corpus 'cifar100' requires train.bin, test.bin, or .* but found "
    'only cifar-100-binary.tar.gz. Get the binary version from .* and unpack '
    r'it\.$',
  ):
    cifar.read_cifar(cifar.CIFAR100, tmp_path)


def test_missing(tmp_path):
  files = _cifar10()
  del files['data_batch_4.bin']
  _write(tmp_path, files)
  with pytest.raises(
    UserError,
    match="^Corpus 'cifar10' requires data_batch_1.bin, .*, test_batch.bin, or "
    'cifar-10-batches-bin/data_batch_1.bin, .*/test_batch.bin in .* '
    'found only data_batch_1.bin, data_batch_2.bin, data_batch_3.bin, '
    'data_batch_5.bin, test_batch.bin. Get the binary version from https',
  ):
    cifar.read_cifar(cifar.CIFAR10, tmp_path)


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    (b'', 'whole records of 3074 bytes, at least one, but it holds 0 bytes'),
    (_cifar100()['train.bin'][:-1], 'of 3074 bytes, .* it holds 6147 bytes'),
    (_record([20, 1], _pixels(0)), "train.bin' must hold labels from 0 to 19"),
    (_record([1, 100], _pixels(0)), 'labels from 0 to 99, but it holds 100'),
  ],
)
def test_damaged(tmp_path, data, words):
  _write(tmp_path, _cifar100() | {'train.bin': data})
  with pytest.raises(UserError, match=words):
    cifar.read_cifar(cifar.CIFAR100, tmp_path)
