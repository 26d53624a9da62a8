"""Tests of checkpoints: exact round trips, damage, full disks, retention."""

import errno
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoint_writer, checkpoints, old_checkpoints

_CONTENTS = {'model': {'num_layers': 4, 'name': 'tïny'}, 'note': None}


def _tensors():
  nan = struct.unpack('<f', b'\x01\x00\xc0\x7f')[0]  # A NaN with a payload.
  return {
    'model/z_first': np.array([[1.5, -0.0], [nan, np.inf]], np.float32),
    'model/a_second': np.array([0.1, -5e-324], np.float64),
    'model/transposed': np.arange(6, dtype=np.float32).reshape(2, 3).T,
    'server_optimizer/step': np.asarray(np.int64(-(2**63))),
    'server_optimizer/count': np.array([[7, -7]], np.int32),
    'server_optimizer/half': np.arange(5).astype(ml_dtypes.bfloat16),
    'flags': np.array([True, False, True]),
    'empty': np.zeros((0, 3), np.float32),
    'big_endian': np.array([1.0, 2.0], '>f4'),
  }


def _save_rounds(directory, *rounds):
  for round_num in rounds:
    checkpoint_writer.save_checkpoint(
      directory, round_num, {'w': np.full(3, round_num, np.float32)}, {}
    )


def _damage(path, offset=-1):
  state = path / 'state.safetensors'
  data = bytearray(state.read_bytes())
  data[offset] ^= 1
  state.write_bytes(data)
  return hashlib.sha256(data).hexdigest()


def test_tensors_return_bit_for_bit(tmp_path):
  saved = _tensors()
  path = checkpoint_writer.save_checkpoint(
    tmp_path / 'c', 100, saved, _CONTENTS
  )
  loaded = checkpoints.load_checkpoint(path)
  assert path == tmp_path / 'c' / 'round_00000100' == loaded.path
  assert loaded.round_num == 100
  assert loaded.contents == _CONTENTS
  assert list(loaded.tensors) == list(saved)
  for name, tensor in saved.items():
    found = loaded.tensors[name]
    assert found.shape == tensor.shape, name
    assert found.dtype == tensor.dtype.newbyteorder('='), name
    native = tensor.astype(tensor.dtype.newbyteorder('='))
    assert found.tobytes() == native.tobytes(), name


def test_files_of_a_checkpoint(tmp_path):
  path = checkpoint_writer.save_checkpoint(tmp_path, 3, _tensors(), _CONTENTS)
  assert sorted(os.listdir(tmp_path)) == ['round_00000003']
  assert sorted(os.listdir(path)) == ['checkpoint.json', 'state.safetensors']
  description = json.loads((path / 'checkpoint.json').read_text('utf-8'))
  state = (path / 'state.safetensors').read_bytes()
  assert description['schema_version'] == 1
  assert description['round'] == 3
  assert description['contents'] == _CONTENTS
  assert description['state'] == {
    'num_bytes': len(state),
    'sha256': hashlib.sha256(state).hexdigest(),
  }
  assert description['tensors']['server_optimizer/half'] == {
    'dtype': 'bfloat16',
    'shape': [5],
  }
  modes = {file.stat().st_mode & 0o777 for file in path.iterdir()}
  mask = os.umask(0)
  os.umask(mask)
  assert modes == {0o666 & ~mask}


def test_same_state_gives_the_same_bytes(tmp_path):
  a = checkpoint_writer.save_checkpoint(
    tmp_path / 'a', 1, _tensors(), _CONTENTS
  )
  b = checkpoint_writer.save_checkpoint(
    tmp_path / 'b', 1, _tensors(), _CONTENTS
  )
  for name in ('checkpoint.json', 'state.safetensors'):
    assert (a / name).read_bytes() == (b / name).read_bytes()


@pytest.mark.parametrize('chunk_bytes', [8, 2**26])
def test_bytes_are_those_of_the_library(tmp_path, monkeypatch, chunk_bytes):
  monkeypatch.setattr(checkpoint_writer, '_CHUNK_BYTES', chunk_bytes)
  tensors = {name: np.ascontiguousarray(t) for name, t in _tensors().items()}
  for dtype in checkpoints.DTYPE_CODES:
    tensors[f'ï "{dtype}"'] = np.arange(7).astype(dtype)
  # Which turns bytes of big-endian numbers around but in the file.
  del tensors['big_endian']
  for content in (tensors, {}):
    path = checkpoint_writer.save_checkpoint(tmp_path, 1, content, {})
    found = (path / 'state.safetensors').read_bytes()
    assert found == safetensors.numpy.save(content)


def test_a_write_can_be_ended_before_every_chunk(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint_writer, '_CHUNK_BYTES', 8)
  # The header's size, the header, and 20 bytes as 8 + 8 + 4.
  num_chunks = 5
  calls = []

  def end_before(num):
    calls.append(num)
    if len(calls) == num:
      raise ZeroDivisionError

  tensors = {'w': np.zeros(5, np.float32)}
  for num in range(1, num_chunks + 1):
    calls.clear()
    with pytest.raises(ZeroDivisionError):
      checkpoint_writer.save_checkpoint(
        tmp_path, 1, tensors, {}, before_chunk=lambda n=num: end_before(n)
      )
    assert os.listdir(tmp_path) == []
  calls.clear()
  checkpoint_writer.save_checkpoint(
    tmp_path, 1, tensors, {}, before_chunk=lambda: end_before(0)
  )
  assert len(calls) == num_chunks


def test_chosen_names(tmp_path):
  path = checkpoint_writer.save_checkpoint(tmp_path, 1, _tensors(), {})
  by_prefix = checkpoints.load_checkpoint(path, 'server_optimizer/')
  assert list(by_prefix.tensors) == [
    'server_optimizer/step',
    'server_optimizer/count',
    'server_optimizer/half',
  ]
  assert checkpoints.load_checkpoint(path, 'none/').tensors == {}
  assert checkpoints.load_checkpoint(path, None).tensors == {}


def test_no_tensors_at_all(tmp_path):
  path = checkpoint_writer.save_checkpoint(tmp_path, 0, {}, {})
  assert checkpoints.load_checkpoint(path).tensors == {}


@pytest.mark.parametrize(
  'array',
  [np.array(['text']), np.array([1 + 2j]), np.array([None])],
  ids=['text', 'complex128', 'object'],
)
def test_other_types_are_refused(tmp_path, array):
  with pytest.raises(TypeError, match="Tensor 'w' must be of a type that"):
    checkpoint_writer.save_checkpoint(tmp_path, 0, {'w': array}, {})
  assert not list(tmp_path.iterdir())


def test_contents_must_be_json(tmp_path):
  with pytest.raises(TypeError, match='not JSON serializable'):
    checkpoint_writer.save_checkpoint(tmp_path, 0, {}, {'x': object()})
  assert not list(tmp_path.iterdir())


def test_negative_round_is_refused(tmp_path):
  with pytest.raises(ValueError, match='`round_num` must be at least 0'):
    checkpoint_writer.save_checkpoint(tmp_path, -1, {}, {})


def test_a_changed_bit_is_found(tmp_path):
  _save_rounds(tmp_path, 4)
  path = tmp_path / 'round_00000004'
  expected = json.loads((path / 'checkpoint.json').read_text())['state']
  found = _damage(path)
  with pytest.raises(
    UserError,
    match=re.escape(
      f'{str(path)!r} is damaged: state.safetensors must have SHA-256 '
      f'{expected["sha256"]}, but has {found}'
    ),
  ):
    checkpoints.load_checkpoint(path)
  with pytest.raises(UserError, match='`--checkpoint`: the checkpoint .* dam'):
    checkpoints.resolve_checkpoint(path)


def test_a_cut_off_file_is_found(tmp_path):
  _save_rounds(tmp_path, 4)
  state = tmp_path / 'round_00000004' / 'state.safetensors'
  num_bytes = state.stat().st_size
  state.write_bytes(state.read_bytes()[:-2])
  with pytest.raises(
    UserError, match=f'must have {num_bytes} bytes, but has {num_bytes - 2}'
  ):
    checkpoints.load_checkpoint(state.parent)
  # Even unverified, what cannot be read is an error of one line.
  with pytest.raises(UserError, match='state.safetensors cannot be read'):
    checkpoints.load_checkpoint(state.parent, verify=False)


@pytest.mark.parametrize(
  'content, words',
  [
    (None, 'checkpoint.json is missing'),
    ('{"schema_ver', 'checkpoint.json is not readable'),
    ('[]', 'checkpoint.json is not readable'),
    ('{"schema_version": 1, "round": 4}', "checkpoint.json has no 'contents'"),
  ],
)
def test_a_damaged_description(tmp_path, content, words):
  _save_rounds(tmp_path, 4)
  file = tmp_path / 'round_00000004' / 'checkpoint.json'
  file.unlink()
  if content is not None:
    file.write_text(content)
  with pytest.raises(UserError, match=f'is damaged: {words}'):
    checkpoints.load_checkpoint(file.parent)


def test_a_missing_state_file(tmp_path):
  _save_rounds(tmp_path, 4)
  (tmp_path / 'round_00000004' / 'state.safetensors').unlink()
  with pytest.raises(UserError, match='state.safetensors is missing'):
    checkpoints.load_checkpoint(tmp_path / 'round_00000004')


def test_a_description_of_another_tensor(tmp_path):
  _save_rounds(tmp_path, 4)
  file = tmp_path / 'round_00000004' / 'checkpoint.json'
  description = json.loads(file.read_text())
  description['tensors']['w']['shape'] = [4]
  file.write_text(json.dumps(description))
  with pytest.raises(UserError, match=r"tensor 'w' must be .*\[4\].*\[3\]"):
    checkpoints.load_checkpoint(file.parent)


def test_a_newer_schema_is_refused(tmp_path):
  _save_rounds(tmp_path, 1, 2)
  file = tmp_path / 'round_00000002' / 'checkpoint.json'
  file.write_text(
    file.read_text().replace('"schema_version": 1', '"schema_version": 2')
  )
  words = 'has schema version 2, but this fedfish reads versions up to 1'
  with pytest.raises(UserError, match=words):
    checkpoints.load_checkpoint(file.parent)
  # Not damaged, so not passed over either.
  with pytest.raises(UserError, match=words):
    checkpoints.latest_checkpoint(tmp_path)
  with pytest.raises(UserError, match='`--checkpoint`: .*' + words):
    checkpoints.resolve_checkpoint(file.parent)


def test_latest_is_the_newest_whole_one(tmp_path, capsys):
  assert checkpoints.latest_checkpoint(tmp_path / 'absent') is None
  assert checkpoints.latest_checkpoint(tmp_path) is None
  _save_rounds(tmp_path, 0, 9, 10)
  (tmp_path / '.round_00000011.abcd').mkdir()
  (tmp_path / 'notes').mkdir()
  latest = checkpoints.latest_checkpoint(tmp_path)
  assert latest == tmp_path / 'round_00000010'
  assert capsys.readouterr().err == ''
  assert checkpoints.list_rounds(tmp_path) == [0, 9, 10]
  assert checkpoints.list_rounds(tmp_path / 'absent') == []


def test_latest_passes_over_a_damaged_one_and_says_so(tmp_path, capsys):
  _save_rounds(tmp_path, 0, 9, 10)
  _damage(tmp_path / 'round_00000010')
  latest = checkpoints.latest_checkpoint(tmp_path)
  assert latest == tmp_path / 'round_00000009'
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1
  assert re.fullmatch(
    "fedfish: warning: the checkpoint '.*round_00000010' is damaged: .*SHA-256 "
    '.*; passing over it.',
    lines[0],
  )


def test_latest_does_not_start_anew_over_damaged_ones(tmp_path):
  _save_rounds(tmp_path, 0, 1)
  _damage(tmp_path / 'round_00000000')
  _damage(tmp_path / 'round_00000001')
  with pytest.raises(UserError, match='to resume from, but all 2 are damaged'):
    checkpoints.latest_checkpoint(tmp_path)


def test_a_damaged_checkpoint_is_replaced(tmp_path):
  _save_rounds(tmp_path, 1, 2)
  _damage(tmp_path / 'round_00000002')
  _save_rounds(tmp_path, 2)
  assert sorted(os.listdir(tmp_path)) == ['round_00000001', 'round_00000002']
  loaded = checkpoints.load_checkpoint(tmp_path / 'round_00000002')
  assert loaded.tensors['w'].tolist() == [2.0, 2.0, 2.0]


def test_resolve_takes_a_checkpoint_or_a_run(tmp_path):
  _save_rounds(tmp_path / 'checkpoints', 0, 2, 10)
  chosen = tmp_path / 'checkpoints' / 'round_00000002'
  last = tmp_path / 'checkpoints' / 'round_00000010'
  assert checkpoints.resolve_checkpoint(chosen) == chosen
  assert checkpoints.resolve_checkpoint(tmp_path) == last
  # A copy under another name is a checkpoint too.
  (tmp_path / 'best').symlink_to(chosen)
  found = checkpoints.resolve_checkpoint(tmp_path / 'best')
  assert checkpoints.load_checkpoint(found).round_num == 2
  _damage(last)
  with pytest.raises(UserError, match='round_00000010.* is damaged'):
    checkpoints.resolve_checkpoint(tmp_path)


def test_resolve_names_what_is_wrong(tmp_path):
  (tmp_path / 'file').touch()
  (tmp_path / 'other').mkdir()
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').touch()
  (tmp_path / 'model').mkdir()
  (tmp_path / 'model' / 'config.json').touch()
  (tmp_path / 'model' / 'SHA256SUMS').touch()
  for name, words in {
    'absent': 'does not exist',
    'model': 'is a model that `fedfish export` wrote, without the state of a '
    'run. Name a directory that `fedfish train` wrote.',
    'file': 'is a file',
    'other': 'holds neither checkpoint.json nor checkpoints/',
    'run': 'is a run without a checkpoint so far',
  }.items():
    with pytest.raises(
      UserError,
      match=f'`--checkpoint` must be a checkpoint .*{name}. {words}',
    ) as caught:
      checkpoints.resolve_checkpoint(tmp_path / name)
    assert '\n' not in str(caught.value)
  (tmp_path / 'round_00000007').mkdir()
  with pytest.raises(UserError, match='checkpoint.json is missing'):
    checkpoints.resolve_checkpoint(tmp_path / 'round_00000007')


def test_old_checkpoints_are_removed(tmp_path):
  _save_rounds(tmp_path, 0, 1, 2, 3, 4, 5)
  (tmp_path / '.round_00000006.killed').mkdir()
  (tmp_path / 'notes').mkdir()
  removed = old_checkpoints.remove_old_checkpoints(
    tmp_path, keep_last=2, keep_rounds={2}
  )
  # Of 1 to 5 the last two stay; 0 and 2 stay in any case.
  assert removed == [1, 3]
  assert checkpoints.list_rounds(tmp_path) == [0, 2, 4, 5]
  assert len(list(tmp_path.iterdir())) == 5
  assert (tmp_path / 'notes').is_dir()


def test_keep_last_of_zero_keeps_all(tmp_path):
  _save_rounds(tmp_path, 0, 1, 2)
  assert old_checkpoints.remove_old_checkpoints(tmp_path, keep_last=0) == []
  assert checkpoints.list_rounds(tmp_path) == [0, 1, 2]
  with pytest.raises(ValueError, match='`keep_last` must be at least 0'):
    old_checkpoints.remove_old_checkpoints(tmp_path, keep_last=-1)


@pytest.mark.parametrize(
  'keep_last, keep_every, kept',
  [
    (0, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
    (0, 3, [0, 1, 2, 3, 4, 5, 6, 7]),
    (2, 0, [0, 6, 7]),
    (2, 3, [0, 3, 6, 7]),
    # Round 5 is one of the last three: it does not make them four.
    (3, 5, [0, 5, 6, 7]),
    (1, 4, [0, 4, 7]),
    (1, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
    (1, 100, [0, 7]),
    (9, 2, [0, 1, 2, 3, 4, 5, 6, 7]),
  ],
)
def test_rounds_that_are_kept(tmp_path, keep_last, keep_every, kept):
  for round_num in range(8):
    (tmp_path / f'round_{round_num:08d}').mkdir()
  removed = old_checkpoints.remove_old_checkpoints(
    tmp_path, keep_last, keep_every_num_rounds=keep_every
  )
  assert checkpoints.list_rounds(tmp_path) == kept
  assert removed == sorted(set(range(8)) - set(kept))


def test_rounds_after_the_current_one_are_removed(tmp_path):
  for round_num in (0, 2, 4, 6, 8):
    (tmp_path / f'round_{round_num:08d}').mkdir()
  removed = old_checkpoints.remove_old_checkpoints(
    tmp_path, 1, keep_every_num_rounds=8, current_round=4
  )
  # 6 and 8 would count as the newest; 8 is divided, but passed over.
  assert removed == [2, 6, 8]
  assert checkpoints.list_rounds(tmp_path) == [0, 4]
  shutil.rmtree(tmp_path / 'round_00000004')
  assert (
    old_checkpoints.remove_old_checkpoints(tmp_path, 0, current_round=4) == []
  )


def test_negative_numbers_of_checkpoints_are_refused(tmp_path):
  words = '`keep_every_num_rounds` must be at least 0, found -1'
  with pytest.raises(ValueError, match=words):
    old_checkpoints.remove_old_checkpoints(
      tmp_path, 1, keep_every_num_rounds=-1
    )


# The file size limit makes the system refuse the write in the middle of it,
# as a full disk does. 100,000 bytes, and a tensor of 8,000,000.
_WRITE_TOO_MUCH = """
import resource, sys
import numpy as np
from tff_fedfish.run import checkpoint_writer, checkpoints
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
  checkpoint_writer.save_checkpoint(
    sys.argv[1], 2, {'w': np.zeros(1_000_000)}, {}
  )
except OSError as error:
  print(error.errno, error)
print('tensorflow' in sys.modules)
"""


def test_a_refused_write_leaves_nothing(tmp_path):
  _save_rounds(tmp_path, 1)
  done = subprocess.run(
    [sys.executable, '-c', _WRITE_TOO_MUCH, str(tmp_path)],
    capture_output=True,
    text=True,
    check=True,
  )
  path = tmp_path / 'round_00000002'
  assert done.stdout.splitlines() == [
    f'{errno.EFBIG} [Errno {errno.EFBIG}] File too large; the checkpoint was '
    f'not written, and nothing of it is left: {str(path)!r}',
    'False',
  ]
  assert os.listdir(tmp_path) == ['round_00000001']
  assert checkpoints.latest_checkpoint(tmp_path) == tmp_path / 'round_00000001'


def test_an_unwritable_place_is_named(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(NotADirectoryError, match='not written.*round_00000000'):
    checkpoint_writer.save_checkpoint(tmp_path / 'file' / 'c', 0, {}, {})


_SAVE_FOR_EVER = """
import itertools, sys
import numpy as np
from tff_fedfish.run import checkpoint_writer, old_checkpoints
for round_num in itertools.count():
  tensors = {'w': np.full(500_000, round_num, np.float32)}
  checkpoint_writer.save_checkpoint(sys.argv[1], round_num, tensors, {})
  old_checkpoints.remove_old_checkpoints(sys.argv[1], keep_last=2)
  print(round_num, flush=True)
"""


def test_every_checkpoint_is_whole_after_a_kill(tmp_path):
  with subprocess.Popen(
    [sys.executable, '-c', _SAVE_FOR_EVER, str(tmp_path)],
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    for expected in range(6):
      assert process.stdout.readline() == f'{expected}\n'
    # It is in the middle of the next one, wherever that may be.
    process.kill()
  rounds = checkpoints.list_rounds(tmp_path)
  assert rounds[0] == 0 and rounds[-1] >= 5
  for round_num in rounds:
    path = tmp_path / f'round_{round_num:08d}'
    loaded = checkpoints.load_checkpoint(path)
    assert (loaded.tensors['w'] == round_num).all()
  old_checkpoints.remove_old_checkpoints(tmp_path, keep_last=2)
  assert not list(tmp_path.glob('.*'))
