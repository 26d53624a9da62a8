"""Checkpoints: which are found and kept, and the writer beside the rounds."""

import errno
import gc
import os
import re
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoint_writer, checkpoints
from tff_fedfish.run.checkpoint_writer import CheckpointWriter

# Only a test that fails waits as long.
_LIMIT_SECONDS = 300


def _tensors(value):
  return {'w': np.full(3, value, np.float32)}


def _save_rounds(directory, *rounds):
  for round_num in rounds:
    checkpoint_writer.save_checkpoint(
      directory, round_num, _tensors(round_num), {}
    )


def _damage(path):
  state = path / 'state.safetensors'
  data = bytearray(state.read_bytes())
  data[-1] ^= 1
  state.write_bytes(data)


def _value(path):
  return checkpoints.load_checkpoint(path).tensors['w'].tolist()


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path):
  tensors = {'model/w': np.float32([-0.0, 0.1]), 'step': np.asarray(7)}
  path = checkpoint_writer.save_checkpoint(
    tmp_path / 'c', 100, tensors, {'algorithm': 'fed_fish', 'note': None}
  )
  assert path == tmp_path / 'c' / 'round_00000100'
  assert sorted(os.listdir(path)) == ['manifest.json', 'state.safetensors']
  loaded = checkpoints.load_checkpoint(path)
  assert (loaded.round_num, loaded.path) == (100, path)
  assert loaded.contents == {'algorithm': 'fed_fish', 'note': None}
  for name, tensor in tensors.items():
    assert loaded.tensors[name].tobytes() == tensor.tobytes()
  by_prefix = checkpoints.load_checkpoint(path, 'model/')
  assert list(by_prefix.tensors) == ['model/w']
  assert checkpoints.load_checkpoint(path, None).tensors == {}


def test_latest_is_the_newest_whole_one(tmp_path, capsys):
  assert checkpoints.latest_checkpoint(tmp_path / 'absent') is None
  assert checkpoints.latest_checkpoint(tmp_path) is None
  _save_rounds(tmp_path, 0, 9, 10)
  (tmp_path / '.round_00000011.abcd').mkdir()
  assert checkpoints.latest_checkpoint(tmp_path).name == 'round_00000010'
  assert capsys.readouterr().err == ''
  _damage(tmp_path / 'round_00000010')
  assert checkpoints.latest_checkpoint(tmp_path).name == 'round_00000009'
  (line,) = capsys.readouterr().err.splitlines()
  assert re.fullmatch(
    "fedfish: warning: '.*/round_00000010/state.safetensors' is damaged: it "
    'must have SHA-256 .*; passing over the checkpoint.',
    line,
  )
  # It is replaced when the run comes to it again.
  _save_rounds(tmp_path, 10)
  assert _value(checkpoints.latest_checkpoint(tmp_path)) == [10, 10, 10]
  for round_num in (0, 9, 10):
    _damage(tmp_path / f'round_{round_num:08d}')
  with pytest.raises(UserError, match='to resume from, but all 3 are damaged'):
    checkpoints.latest_checkpoint(tmp_path)


def test_resolve_takes_a_checkpoint_or_a_run(tmp_path):
  _save_rounds(tmp_path / 'checkpoints', 0, 2, 10)
  chosen = tmp_path / 'checkpoints' / 'round_00000002'
  last = tmp_path / 'checkpoints' / 'round_00000010'
  assert checkpoints.resolve_checkpoint(chosen) == chosen
  assert checkpoints.resolve_checkpoint(tmp_path) == last
  # A copy under another name is a checkpoint too.
  (tmp_path / 'best').symlink_to(chosen)
  path = checkpoints.resolve_checkpoint(tmp_path / 'best')
  assert checkpoints.load_checkpoint(path).round_num == 2
  _damage(last)
  words = '`--checkpoint`: .*round_00000010.*is damaged: .*another checkpoint'
  with pytest.raises(UserError, match=words):
    checkpoints.resolve_checkpoint(tmp_path)


def test_resolve_names_what_is_wrong(tmp_path):
  for name in ('other', 'run', 'model', 'corpus'):
    (tmp_path / name).mkdir()
  (tmp_path / 'run' / 'config.json').touch()
  (tmp_path / 'model' / 'config.json').touch()
  (tmp_path / 'model' / 'SHA256SUMS').touch()
  (tmp_path / 'corpus' / 'manifest.json').touch()
  for name, words in {
    'absent': 'does not exist',
    'model': 'is a model that `fedfish export` wrote, without the state of a '
    'run. Name a directory that `fedfish train` wrote.',
    'other': 'holds neither state.safetensors nor checkpoints/',
    'corpus': 'holds neither state.safetensors nor checkpoints/',
    'run': 'holds neither state.safetensors nor checkpoints/',
  }.items():
    with pytest.raises(
      UserError,
      match=f'`--checkpoint` must be a checkpoint .*{name}. {words}',
    ) as caught:
      checkpoints.resolve_checkpoint(tmp_path / name)
    assert '\n' not in str(caught.value)
  (tmp_path / 'round_00000007').mkdir()
  with pytest.raises(UserError, match="manifest.json' is damaged"):
    checkpoints.resolve_checkpoint(tmp_path / 'round_00000007')


@pytest.mark.parametrize(
  'keep_last, keep_every, kept',
  [
    (0, 3, [0, 1, 2, 3, 4, 5, 6, 7]),
    (2, 0, [0, 6, 7]),
    (2, 3, [0, 3, 6, 7]),
    # Round 5 is one of the last three: it does not make them four.
    (3, 5, [0, 5, 6, 7]),
  ],
)
def test_rounds_that_are_kept(tmp_path, keep_last, keep_every, kept):
  with CheckpointWriter(
    tmp_path, keep_last=keep_last, keep_every_num_rounds=keep_every
  ) as writer:
    for round_num in range(8):
      writer.save(round_num, _tensors(round_num), {})
  assert checkpoints.list_rounds(tmp_path) == kept


def test_a_checkpoint_of_an_interruption_goes_with_the_next(tmp_path):
  rounds = {0: [0], 5: [0, 5], 10: [0, 5, 10], 12: [0, 5, 10, 12]}
  rounds |= {13: [0, 5, 10, 13], 15: [0, 10, 15]}
  for round_num, kept in rounds.items():
    with CheckpointWriter(
      tmp_path, keep_last=2, is_regular=lambda r: r % 5 == 0
    ) as writer:
      writer.save(round_num, _tensors(round_num), {})
    assert checkpoints.list_rounds(tmp_path) == kept


class _SlowWrites:
  """Lets every write wait until it is allowed to go on.

  Attributes:
    begun: Rounds whose writes have begun.
    allowed: Semaphore; each release lets one write go on.
  """

  def __init__(self, monkeypatch):
    self.begun = []
    self.has_begun = threading.Semaphore(0)
    self.allowed = threading.Semaphore(0)
    self._save = checkpoint_writer.save_checkpoint
    monkeypatch.setattr(checkpoint_writer, 'save_checkpoint', self._save_slowly)

  def _save_slowly(self, directory, round_num, *rest):
    self.begun.append(round_num)
    self.has_begun.release()
    assert self.allowed.acquire(timeout=_LIMIT_SECONDS)
    return self._save(directory, round_num, *rest)


@pytest.fixture
def slow_writes(monkeypatch):
  writes = _SlowWrites(monkeypatch)
  yield writes
  # No thread of a failed test goes on into the next test.
  for _ in range(10):
    writes.allowed.release()


def test_one_write_at_a_time_beside_the_rounds(tmp_path, slow_writes):
  leftover = tmp_path / '.round_00000001.killed'
  leftover.mkdir()
  first = _tensors(1)
  alive = weakref.ref(first['w'])
  with CheckpointWriter(tmp_path, keep_last=0) as writer:
    writer.save(1, first, {})
    del first
    assert slow_writes.has_begun.acquire(timeout=_LIMIT_SECONDS)
    assert not leftover.exists()
    assert checkpoints.list_rounds(tmp_path) == []
    has_returned = threading.Event()

    def save_another():
      writer.save(2, _tensors(2), {})
      has_returned.set()

    thread = threading.Thread(target=save_another)
    thread.start()
    assert not has_returned.wait(0.05)
    assert slow_writes.begun == [1]
    assert alive() is not None
    slow_writes.allowed.release()
    assert has_returned.wait(_LIMIT_SECONDS)
    # Of the states saved, only that of round 2 is kept now.
    gc.collect()
    assert alive() is None
    slow_writes.allowed.release()
    thread.join(_LIMIT_SECONDS)
  # Leaving the block waits.
  assert checkpoints.list_rounds(tmp_path) == [1, 2]


def test_later_checkpoints_do_not_push_out_good_ones(tmp_path):
  with CheckpointWriter(tmp_path, keep_last=0) as writer:
    for round_num in (0, 6, 8, 10):
      writer.save(round_num, _tensors(round_num), {})
  # Damaged; a run would resume from round 8 and stop after round 9.
  _damage(tmp_path / 'round_00000010')
  with CheckpointWriter(
    tmp_path, keep_last=1, keep_every_num_rounds=10
  ) as writer:
    writer.save(9, _tensors(9), {}, keep_rounds={6})
  assert checkpoints.list_rounds(tmp_path) == [0, 6, 9]


def test_full_disk(small_disk):
  directory = small_disk / 'checkpoints'
  words = re.escape(f'[Errno {errno.ENOSPC}] No space left on device: ')
  words += ".*/checkpoints/.round_00000002.*/state.safetensors'"
  with CheckpointWriter(directory, keep_last=1) as writer:
    writer.save(1, _tensors(1), {})
    assert writer.wait() is None
    writer.save(2, {'w': np.zeros(1_000_000, np.uint8)}, {})
    assert re.search(words, str(writer.wait()))
    assert writer.has_failed
    # The last whole one is kept, though only one is to be, and nothing else.
    assert os.listdir(directory) == ['round_00000001']
    assert _value(checkpoints.latest_checkpoint(directory)) == [1, 1, 1]
    # There is room for what comes next.
    writer.save(3, _tensors(3), {})
    assert writer.wait() is None and not writer.has_failed
  assert os.listdir(directory) == ['round_00000003']


_SAVE_FOR_EVER = """
import itertools, sys
import numpy as np
from tff_fedfish.run.checkpoint_writer import CheckpointWriter
with CheckpointWriter(sys.argv[1], keep_last=2) as writer:
  for round_num in itertools.count():
    tensors = {'w': np.full(500_000, round_num, np.float32)}
    writer.save(round_num, tensors, {})
    writer.wait()
    print(round_num, 'tensorflow' in sys.modules, flush=True)
"""


def test_every_checkpoint_is_whole_after_a_kill(tmp_path):
  with subprocess.Popen(
    [sys.executable, '-c', _SAVE_FOR_EVER, str(tmp_path)],
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    for expected in range(6):
      assert process.stdout.readline() == f'{expected} False\n'
    # It is in the middle of the next one, wherever that may be.
    process.kill()
  rounds = checkpoints.list_rounds(tmp_path)
  assert rounds[0] == 0 and rounds[-1] >= 5
  for round_num in rounds:
    path = tmp_path / f'round_{round_num:08d}'
    assert _value(path)[0] == round_num
  with CheckpointWriter(tmp_path, keep_last=2) as writer:
    writer.save(rounds[-1] + 1, _tensors(0), {})
  assert not list(tmp_path.glob('.*'))
