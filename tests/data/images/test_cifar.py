"""CIFAR's binary files, from a folder and from the archive."""

import gzip
import io
import tarfile

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


def _pack(path, files, folder):
  with tarfile.open(path, 'w:gz') as archive:
    for name, data in {'readme.html': b'x', **files}.items():
      member = tarfile.TarInfo(f'{folder}/{name}')
      member.size = len(data)
      archive.addfile(member, io.BytesIO(data))


def test_planes_become_channels(tmp_path):
  _write(tmp_path, _cifar100())
  train, test = cifar.read_cifar(cifar.CIFAR100, tmp_path)
  assert train.images.dtype == np.uint8 and train.labels.dtype == np.int32
  np.testing.assert_array_equal(train.images, [_pixels(0), _pixels(1)])
  np.testing.assert_array_equal(test.images, [_pixels(2)])
  # The second byte is the class; the first its superclass.
  assert train.labels.tolist() == [99, 0]
  assert train.coarse_labels.tolist() == [19, 4]
  assert (test.labels.tolist(), test.coarse_labels.tolist()) == ([8], [7])


def test_batches_are_joined_in_order(tmp_path):
  _write(tmp_path, _cifar10())
  train, test = cifar.read_cifar(cifar.CIFAR10, tmp_path)
  # Batch i has i records of class i; the test batch is the sixth.
  assert train.labels.tolist() == [1, 2, 2, 3, 3, 3, *[4] * 4, *[5] * 5]
  assert test.labels.tolist() == [6] * 6
  np.testing.assert_array_equal(train.images[2], _pixels(21))
  assert train.coarse_labels is None


@pytest.mark.parametrize(
  ('version', 'files'),
  [(cifar.CIFAR10, _cifar10()), (cifar.CIFAR100, _cifar100())],
)
def test_folder_and_archive_are_read_alike(tmp_path, version, files):
  _write(tmp_path / 'plain', files)
  expected = cifar.read_cifar(version, tmp_path / 'plain')
  # As the archive unpacks, and as it is.
  (tmp_path / 'unpacked').mkdir()
  _write(tmp_path / 'unpacked' / version.folder, files)
  (tmp_path / 'packed').mkdir()
  # In another order than they are needed in.
  backwards = dict(reversed(files.items()))
  _pack(tmp_path / 'packed' / version.archive, backwards, version.folder)
  for directory in ('unpacked', 'packed'):
    found = cifar.read_cifar(version, tmp_path / directory)
    for side, expected_side in zip(found, expected, strict=True):
      for value, expected_value in zip(side, expected_side, strict=True):
        np.testing.assert_array_equal(value, expected_value)


def test_missing(tmp_path):
  files = _cifar10()
  del files['data_batch_4.bin']
  _write(tmp_path, files)
  with pytest.raises(
    UserError,
    match="^Corpus 'cifar10' requires data_batch_1.bin, .*, test_batch.bin, or "
    'cifar-10-batches-bin/data_batch_1.bin, .*, or cifar-10-binary.tar.gz in '
    '.* found only data_batch_1.bin, data_batch_2.bin, data_batch_3.bin, '
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


def test_archive_of_something_else(tmp_path):
  path = tmp_path / 'cifar-100-binary.tar.gz'
  _pack(path, {'train.bin': b''}, 'cifar-100-binary')
  with pytest.raises(
    UserError,
    match='must hold cifar-100-binary/train.bin, cifar-100-binary/test.bin, '
    'but it lacks cifar-100-binary/test.bin. Get it again',
  ):
    cifar.read_cifar(cifar.CIFAR100, tmp_path)


@pytest.mark.parametrize('kind', ['cut off', 'no archive', 'not packed'])
def test_damaged_archive(tmp_path, kind):
  path = tmp_path / 'cifar-100-binary.tar.gz'
  _pack(path, _cifar100(), 'cifar-100-binary')
  data = {
    'cut off': path.read_bytes()[:-3000],
    'no archive': gzip.compress(b'no archive' * 100),
    'not packed': b'nothing',
  }[kind]
  path.write_bytes(data)
  with pytest.raises(
    UserError, match="cifar-100-binary.tar.gz' must be a whole, readable file"
  ):
    cifar.read_cifar(cifar.CIFAR100, tmp_path)
