"""The store of a run's rounds: exact round trips, damage, disks that fail."""

import errno
import json
import os
import re
import struct

import disk_calls
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.run import store, tensor_files
from tff_fedfish.run.store import RoundStore
from tff_fedfish.run.tensor_files import DamagedError

_CONTENTS = {'model': {'num_layers': 4, 'name': 'tïny'}, 'note': None}


def _tensors():
  nan = struct.unpack('<f', b'\x01\x00\xc0\x7f')[0]  # A NaN with a payload.
  return {
    'model/z_first': np.array([[1.5, -0.0], [nan, np.inf]], np.float32),
    'model/a_second': np.array([0.1, -5e-324], np.float64),
    'model/transposed': np.arange(6, dtype=np.float32).reshape(2, 3).T,
    'server_optimizer/step': np.asarray(np.int64(-(2**63))),
    'server_optimizer/half': np.arange(5).astype(ml_dtypes.bfloat16),
    'flags': np.array([True, False, True]),
    'empty': np.zeros((0, 3), np.float32),
    'big_endian': np.array([1.0, 2.0], '>f4'),
  }


def _write(directory, round_num, tensors, *, syncs=False):
  """Writes a round of one client, b'a'; returns the client's file."""
  with RoundStore(directory).begin(round_num, syncs=syncs) as writer:
    writer.add_client(0, b'a', tensors)
    writer.commit(_CONTENTS)
  return writer.path / '0000.safetensors'


@pytest.mark.parametrize('syncs', [False, True])
def test_tensors_return_bit_for_bit(tmp_path, syncs):
  path = _write(tmp_path, 12, _tensors(), syncs=syncs)
  assert path.parent == tmp_path / 'round_00000012'
  assert sorted(os.listdir(path.parent)) == [path.name, 'manifest.json']
  tensors = tensor_files.read(path)
  assert tensor_files.shapes(path) == {
    n: t.shape for n, t in _tensors().items()
  }
  for name, tensor in _tensors().items():
    native = tensor.astype(tensor.dtype.newbyteorder('='))
    assert tensors[name].dtype == native.dtype, name
    assert tensors[name].shape == tensor_files.shapes(path)[name]
    assert tensors[name].tobytes() == native.tobytes(), name
  assert list(tensor_files.read(path, ['flags'])) == ['flags']
  assert len(tensor_files.read(path, prefix='model/')) == 3
  manifest = RoundStore(tmp_path).manifest(12)
  assert manifest.round == 12 and manifest.contents == _CONTENTS
  assert store.by_client(manifest.files).keys() == {b'a'}
  mask = os.umask(0)
  os.umask(mask)
  modes = {file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
  assert modes == {0o666 & ~mask}


@pytest.mark.parametrize('chunk_bytes', [8, 2**26])
def test_bytes_are_those_of_the_library(tmp_path, monkeypatch, chunk_bytes):
  monkeypatch.setattr(tensor_files, '_CHUNK_BYTES', chunk_bytes)
  tensors = {name: np.ascontiguousarray(t) for name, t in _tensors().items()}
  for dtype in tensor_files._DTYPE_CODES:
    tensors[f'ï "{dtype}"'] = np.arange(7).astype(dtype)
  # Which turns bytes of big-endian numbers around but in the file.
  del tensors['big_endian']
  for content in (tensors, {}):
    path = _write(tmp_path, 1, content, syncs=True)
    assert path.read_bytes() == safetensors.numpy.save(content)


def test_a_round_counts_once_it_is_committed(tmp_path):
  rounds = RoundStore(tmp_path / 'states')
  assert rounds.rounds() == []
  writer = rounds.begin(3)
  writer.add_client(0, b'a', {'w': np.ones(2)})
  writer.add_client(1, b'b', {'w': np.ones(2)})
  # A client that is run again counts once, one that is taken back not at all.
  writer.add_client(1, b'b', {'w': np.zeros(2)})
  writer.take_back(b'a')
  writer.take_back(b'c')
  # As after kill -9.
  assert rounds.rounds() == []
  writer.commit()
  assert rounds.rounds() == [3]
  path = rounds.path(3)
  assert sorted(os.listdir(path)) == ['0001.safetensors', 'manifest.json']
  assert tensor_files.read(path / '0001.safetensors')['w'].tolist() == [0, 0]
  with rounds.begin(4) as given_up:
    given_up.add_client(0, b'a', {'w': np.ones(2)})
  with rounds.begin(4) as empty:
    assert empty.commit() == {}
  assert os.listdir(rounds.directory) == ['round_00000003']


def test_rounds_are_replaced_and_removed(tmp_path):
  rounds = RoundStore(tmp_path)
  for round_num in (1, 9, 10):
    _write(tmp_path, round_num, {'w': np.zeros(1)})
  path = _write(tmp_path, 9, {'w': np.ones(1)})
  assert tensor_files.read(path)['w'].tolist() == [1]
  (tmp_path / '.round_00000011.killed').mkdir()
  (tmp_path / 'notes').mkdir()
  assert rounds.rounds() == [1, 9, 10]
  rounds.discard_after(9)
  assert rounds.rounds() == [1, 9]
  assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize(
  'array',
  [np.array(['text']), np.array([1 + 2j]), np.array([None])],
  ids=['text', 'complex128', 'object'],
)
def test_other_types_are_refused(tmp_path, array):
  with pytest.raises(TypeError, match="Tensor 'w' must be of a type that"):
    _write(tmp_path, 0, {'w': array})
  assert not list(tmp_path.iterdir())


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 4
  path.write_bytes(content)


def _cut(path):
  os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
  ('name', 'damage', 'words'),
  [
    ('0000.safetensors', _flip, 'must have SHA-256 [0-9a-f]{64}, but has '),
    ('0000.safetensors', _cut, r'must have \d+ bytes, but has \d+'),
    ('0000.safetensors', os.unlink, r'cannot be read \(No such file'),
    ('manifest.json', _flip, r'cannot be read \('),
    ('manifest.json', lambda p: os.truncate(p, 20), r'cannot be read \('),
    ('manifest.json', os.unlink, r'cannot be read \(No such file'),
    ('manifest.json', lambda p: p.write_text('[]'), r'cannot be read \('),
    ('manifest.json', lambda p: p.write_text('{}'), r'cannot be read \(.sha'),
  ],
)
def test_damage_is_one_line_that_names_the_file(tmp_path, name, damage, words):
  path = _write(tmp_path, 4, _tensors()).parent / name
  before = path.read_bytes()
  damage(path)
  with pytest.raises(DamagedError) as caught:
    list(RoundStore(tmp_path).verify(4))
  line = str(caught.value)
  assert re.match(f"'{path}' is damaged: it {words}", line), line
  assert '\n' not in line and line.endswith(tensor_files.ADVICE)
  path.write_bytes(before)
  assert len(list(RoundStore(tmp_path).verify(4))) == 1


def test_every_bit_of_a_manifest_counts(tmp_path):
  path = _write(tmp_path, 4, {'w': np.ones(1)}).parent / 'manifest.json'
  content, manifest = path.read_bytes(), store.read_manifest(path.parent)
  for position in range(len(content)):
    changed = bytearray(content)
    changed[position] ^= 1
    path.write_bytes(changed)
    # White space may become another one.
    try:
      assert store.read_manifest(path.parent) == manifest
    except UserError as error:
      assert str(path) in str(error)


def test_a_manifest_of_another_round_or_version(tmp_path):
  path = _write(tmp_path, 4, {'w': np.ones(1)}).parent
  os.rename(path, tmp_path / 'round_00000005')
  with pytest.raises(DamagedError, match='it is of round 4'):
    RoundStore(tmp_path).manifest(5)
  # Under another name it is a copy.
  os.rename(tmp_path / 'round_00000005', tmp_path / 'copy')
  assert store.read_manifest(tmp_path / 'copy').round == 4
  file = tmp_path / 'copy' / 'manifest.json'
  value = json.loads(file.read_text()) | {'schema_version': 2}
  del value['sha256']
  file.write_text(json.dumps(files.with_hash(value)))
  with pytest.raises(UserError, match='version 2. Update fedfish') as caught:
    store.read_manifest(tmp_path / 'copy')
  # So it is not passed over.
  assert not isinstance(caught.value, DamagedError)


@pytest.mark.parametrize(
  'next_call',
  [
    lambda writer: writer.add_client(2, b'c', {'w': np.zeros(1)}),
    lambda writer: writer.take_back(b'b'),
    lambda writer: writer.files(),
    lambda writer: writer.commit(),
  ],
  ids=['add', 'take_back', 'files', 'commit'],
)
def test_full_disk(small_disk, next_call):
  _write(small_disk, 1, {'w': np.zeros(1)})
  rounds = RoundStore(small_disk)
  with pytest.raises(OSError) as caught, rounds.begin(2) as writer:
    writer.add_client(0, b'a', {'w': np.zeros(1)})
    # Written in a thread: the next call raises.
    writer.add_client(1, b'b', {'w': np.zeros(1_000_000, np.uint8)})
    next_call(writer)
  assert caught.value.errno == errno.ENOSPC
  assert caught.value.filename.endswith('/0001.safetensors')
  # There is room again, and the last round is whole.
  assert os.listdir(small_disk) == ['round_00000001']
  _write(small_disk, 2, {'w': np.zeros(1)})


def test_a_round_is_on_disk_before_and_after_it_has_its_name(
  tmp_path, monkeypatch
):
  calls = disk_calls.record(monkeypatch, tmp_path)
  _write(tmp_path, 1, {'w': np.zeros(1)}, syncs=True)
  *before, (_, new, name), after = calls
  assert new.startswith('.round_00000001.') and name == 'round_00000001'
  flushed = {path for call, path, _ in before if call == 'fsync'}
  assert flushed >= {f'{new}/0000.safetensors', f'{new}/{store.MANIFEST}', new}
  # The directory of rounds.
  assert after == ('fsync', '.', None)


@pytest.mark.parametrize('name', ['fsync', 'fdatasync', 'replace', 'chmod'])
@pytest.mark.parametrize('num_good', range(5))
def test_every_call_that_fails_names_a_file(
  tmp_path, monkeypatch, name, num_good
):
  """The call after some good ones, and all later ones, fail."""
  monkeypatch.setattr(tensor_files, '_CHUNK_BYTES', 8)
  directory, call, calls = tmp_path / 'rounds', getattr(os, name), []
  rounds = RoundStore(directory)
  _write(directory, 1, {'w': np.zeros(9)}, syncs=True)

  def fail(*arguments, **options):
    calls.append(arguments)
    if len(calls) > num_good:
      named = [a for a in arguments if not isinstance(a, int)][:1]
      raise OSError(errno.EIO, 'Input/output error', *named)
    return call(*arguments, **options)

  monkeypatch.setattr(os, name, fail)
  try:
    _write(directory, 2, {'w': np.ones(9)}, syncs=True)
    assert len(calls) <= num_good
  except OSError as error:
    assert error.filename and str(tmp_path) in os.fspath(error.filename)
  monkeypatch.undo()
  # Either as before or whole.
  assert not list(directory.glob('.round_*'))
  for round_num in rounds.rounds():
    list(rounds.verify(round_num))
  assert rounds.rounds()[0] == 1
