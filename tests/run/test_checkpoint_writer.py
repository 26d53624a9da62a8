"""Tests of the background writer: order, back-pressure, failures, endings."""

import errno
import gc
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from tff_fedfish.run import checkpoint_writer, checkpoints
from tff_fedfish.run.checkpoint_writer import CheckpointWriter

# Only a test that fails waits as long.
_LIMIT_SECONDS = 300
# More than the small disks and the small limits on files below.
_TOO_LARGE = {'w': np.zeros(1_000_000, np.uint8)}


def _tensors(value):
  return {'w': np.full(3, value, np.float32)}


def _value(path):
  return checkpoints.load_checkpoint(path).tensors['w'].tolist()


class _SlowWrites:
  """Lets every write wait until it is allowed to go on.

  Attributes:
    begun: Queue of the rounds whose writes have begun.
    allowed: Semaphore; each release lets one write go on.
    log: What happened, in order: ('begin', round) and ('end', round).
  """

  def __init__(self, monkeypatch):
    self.begun = queue.SimpleQueue()
    self.allowed = threading.Semaphore(0)
    self.log = []
    self._write = checkpoint_writer._write_files
    monkeypatch.setattr(checkpoint_writer, '_write_files', self._write_slowly)

  def _write_slowly(self, path, description, *rest):
    self.log.append(('begin', description['round']))
    self.begun.put(description['round'])
    assert self.allowed.acquire(timeout=_LIMIT_SECONDS)
    self._write(path, description, *rest)
    self.log.append(('end', description['round']))


@pytest.fixture
def slow_writes(monkeypatch):
  writes = _SlowWrites(monkeypatch)
  yield writes
  # No thread of a failed test goes on into the next test.
  for _ in range(10):
    writes.allowed.release()


def test_saved_state_is_loaded_bit_for_bit(tmp_path):
  with CheckpointWriter(tmp_path / 'c', keep_last=0) as writer:
    writer.save(4, _tensors(-0.1), {'algorithm': 'fed_fish'})
  loaded = checkpoints.load_checkpoint(tmp_path / 'c' / 'round_00000004')
  assert loaded.tensors['w'].tobytes() == _tensors(-0.1)['w'].tobytes()
  assert loaded.contents == {'algorithm': 'fed_fish'}


def test_save_returns_while_the_write_goes_on(tmp_path, slow_writes):
  writer = CheckpointWriter(tmp_path, keep_last=0)
  writer.save(1, _tensors(1), {})
  assert slow_writes.begun.get(timeout=_LIMIT_SECONDS) == 1
  assert checkpoints.list_rounds(tmp_path) == []
  slow_writes.allowed.release()
  writer.wait()
  assert checkpoints.list_rounds(tmp_path) == [1]
  assert os.listdir(tmp_path) == ['round_00000001']


def test_next_save_waits_for_the_write_before(tmp_path, slow_writes):
  writer = CheckpointWriter(tmp_path, keep_last=0)
  first = _tensors(1)
  alive = weakref.ref(first['w'])
  writer.save(1, first, {})
  del first
  slow_writes.begun.get(timeout=_LIMIT_SECONDS)
  has_returned = threading.Event()

  def save_two_more():
    writer.save(2, _tensors(2), {})
    has_returned.set()
    writer.save(3, _tensors(3), {})

  thread = threading.Thread(target=save_two_more)
  thread.start()
  assert not has_returned.wait(0.05)
  assert slow_writes.begun.empty()
  assert alive() is not None
  slow_writes.allowed.release()
  assert has_returned.wait(_LIMIT_SECONDS)
  # Of the states saved, only that of round 2 is kept now.
  gc.collect()
  assert alive() is None
  slow_writes.allowed.release()
  slow_writes.allowed.release()
  thread.join(_LIMIT_SECONDS)
  writer.wait()
  assert slow_writes.log == [
    (what, round_num) for round_num in (1, 2, 3) for what in ('begin', 'end')
  ]
  assert checkpoints.list_rounds(tmp_path) == [1, 2, 3]


def test_leaving_the_block_waits(tmp_path, slow_writes):
  thread = threading.Thread(
    target=lambda: (
      slow_writes.begun.get(timeout=_LIMIT_SECONDS),
      slow_writes.allowed.release(),
    )
  )
  thread.start()
  with CheckpointWriter(tmp_path, keep_last=0) as writer:
    writer.save(1, _tensors(1), {})
  assert checkpoints.list_rounds(tmp_path) == [1]
  thread.join(_LIMIT_SECONDS)


def test_old_checkpoints_are_removed_after_each_write(tmp_path):
  with CheckpointWriter(
    tmp_path, keep_last=2, keep_every_num_rounds=3
  ) as writer:
    for round_num, expected in [
      (0, [0]),
      (2, [0, 2]),
      (3, [0, 2, 3]),
      (4, [0, 3, 4]),  # 2 goes: 3 counts among the last two.
      (5, [0, 3, 4, 5]),
      (8, [0, 3, 5, 8]),
    ]:
      writer.save(round_num, _tensors(round_num), {})
      writer.wait()
      assert checkpoints.list_rounds(tmp_path) == expected


def test_later_checkpoints_do_not_push_out_good_ones(tmp_path):
  with CheckpointWriter(tmp_path, keep_last=0) as writer:
    for round_num in (0, 8, 10):
      writer.save(round_num, _tensors(round_num), {})
  # Damaged; a run would resume from round 8 and stop after round 9.
  (tmp_path / 'round_00000010' / 'state.safetensors').write_bytes(b'')
  with CheckpointWriter(tmp_path, keep_last=1) as writer:
    writer.save(9, _tensors(9), {})
  assert checkpoints.list_rounds(tmp_path) == [0, 9]


def test_leftovers_are_removed_before_the_first_write(tmp_path, slow_writes):
  leftover = tmp_path / '.round_00000001.killed'
  leftover.mkdir()
  (leftover / 'state.safetensors').touch()
  with CheckpointWriter(tmp_path, keep_last=0) as writer:
    assert leftover.exists()
    writer.save(1, _tensors(1), {})
    slow_writes.begun.get(timeout=_LIMIT_SECONDS)
    assert not leftover.exists()
    slow_writes.allowed.release()


@pytest.mark.parametrize('name', ['keep_last', 'keep_every_num_rounds'])
def test_negative_numbers_to_keep_are_refused(tmp_path, name):
  numbers = {'keep_last': 1, name: -2}
  with pytest.raises(
    ValueError, match=f'`{name}` must be at least 0, found -2'
  ):
    CheckpointWriter(tmp_path, **numbers)


def test_full_disk(small_disk):
  directory = small_disk / 'checkpoints'
  path = directory / 'round_00000002'
  words = re.escape(
    f'[Errno {errno.ENOSPC}] No space left on device; the checkpoint was not '
    f'written, and nothing of it is left: {str(path)!r}'
  )
  writer = CheckpointWriter(directory, keep_last=1)
  writer.save(1, _tensors(1), {})
  writer.save(2, _TOO_LARGE, {})
  with pytest.raises(OSError, match=words):
    writer.save(3, _tensors(3), {})
  with pytest.raises(OSError, match=words):
    writer.wait()
  with pytest.raises(OSError, match=words):
    writer.save(4, _tensors(4), {})
  # The last whole one is kept, though only one is to be, and nothing else.
  assert os.listdir(directory) == ['round_00000001']
  assert _value(checkpoints.latest_checkpoint(directory)) == [1, 1, 1]
  # There is room for what a new start writes.
  with CheckpointWriter(directory, keep_last=1) as writer:
    writer.save(2, _tensors(2), {})
  assert os.listdir(directory) == ['round_00000002']


# The limit on the size of files makes the system refuse the write in the
# middle of it, as a full disk does.
_SAVE_TOO_MUCH = """
import resource, sys
import numpy as np
from tff_fedfish.run.checkpoint_writer import CheckpointWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
  with CheckpointWriter(sys.argv[1], keep_last=1) as writer:
    writer.save(1, {'w': np.ones(3, np.float32)}, {})
    writer.save(2, {'w': np.zeros(1_000_000)}, {})
    print('returned')
except OSError as error:
  print(error.errno, error.filename)
print('tensorflow' in sys.modules)
"""


def test_refused_write_fails_at_the_end_of_the_block(tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', _SAVE_TOO_MUCH, str(tmp_path)],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.splitlines() == [
    'returned',
    f'{errno.EFBIG} {tmp_path / "round_00000002"}',
    'False',
  ]
  assert done.stderr == ''
  assert os.listdir(tmp_path) == ['round_00000001']
  assert _value(tmp_path / 'round_00000001') == [1, 1, 1]


class TestFailures:
  """Every write fails: the directory's place is taken by a file."""

  @pytest.fixture
  def writer(self, tmp_path):
    (tmp_path / 'file').touch()
    return CheckpointWriter(tmp_path / 'file' / 'c', keep_last=0)

  def test_failure_raised_by_save_ends_the_block_as_it_is(self, writer, capsys):
    with pytest.raises(NotADirectoryError, match='round_00000001'), writer:
      writer.save(1, _tensors(1), {})
      writer.save(2, _tensors(2), {})
    assert capsys.readouterr().err == ''

  def test_failure_that_was_caught_is_raised_again(self, writer):
    with pytest.raises(NotADirectoryError, match='round_00000001'), writer:
      writer.save(1, _tensors(1), {})
      with pytest.raises(NotADirectoryError):
        writer.wait()

  def test_another_exception_is_not_replaced(self, writer, capsys):
    with pytest.raises(ZeroDivisionError, match='of the loop'), writer:
      writer.save(1, _tensors(1), {})
      raise ZeroDivisionError('of the loop')
    assert re.fullmatch(
      r'fedfish: warning: \[Errno 20\] Not a directory; the checkpoint was '
      r"not written, and nothing of it is left: '.*/round_00000001'\.\n",
      capsys.readouterr().err,
    )

  def test_interruption_is_not_replaced_either(self, writer, capsys):
    with pytest.raises(KeyboardInterrupt), writer:
      writer.save(1, _tensors(1), {})
      raise KeyboardInterrupt
    assert capsys.readouterr().err.count('Not a directory') == 1


def test_bad_arguments_are_raised_by_wait(tmp_path):
  writer = CheckpointWriter(tmp_path, keep_last=0)
  writer.save(1, {'w': np.array(['text'])}, {})
  with pytest.raises(TypeError, match="Tensor 'w' must be of a type that"):
    writer.wait()
  writer = CheckpointWriter(tmp_path, keep_last=0)
  writer.save(-1, {}, {})
  with pytest.raises(ValueError, match='`round_num` must be at least 0'):
    writer.wait()


def test_no_thread_to_give(tmp_path, monkeypatch):
  writer = CheckpointWriter(tmp_path, keep_last=0)
  with monkeypatch.context() as patch:

    def refuse(self):
      raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, 'start', refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
      writer.save(1, _tensors(1), {})
  writer.save(1, _tensors(1), {})
  writer.wait()
  assert checkpoints.list_rounds(tmp_path) == [1]


@pytest.mark.parametrize('kind', [KeyboardInterrupt, SystemExit])
def test_interrupted_block_stops_the_write(tmp_path, monkeypatch, capsys, kind):
  has_begun = threading.Event()
  with pytest.raises(kind), CheckpointWriter(tmp_path, keep_last=0) as writer:
    writer.save(1, _tensors(1), {})
    writer.wait()
    write = checkpoint_writer._write_files

    def write_until_told_to_stop(path, description, arrays, before_chunk):
      def before_slow_chunk():
        has_begun.set()
        assert writer._must_stop.wait(_LIMIT_SECONDS)
        before_chunk()

      write(path, description, arrays, before_slow_chunk)

    monkeypatch.setattr(
      checkpoint_writer, '_write_files', write_until_told_to_stop
    )
    writer.save(2, _tensors(2), {})
    assert has_begun.wait(_LIMIT_SECONDS)
    raise kind
  assert os.listdir(tmp_path) == ['round_00000001']
  assert capsys.readouterr().err == (
    'fedfish: warning: the checkpoint of round 2 was given up, and nothing of '
    'it is left.\n'
  )
  with pytest.raises(Exception, match='round 2 was given up'):
    writer.save(3, _tensors(3), {})


# Two signals while the end of the block waits for a write that never ends.
_STUCK = """
import os, signal, sys, threading
import numpy as np
from tff_fedfish.run import checkpoint_writer
from tff_fedfish.training.interruption import Abandoned, Interruption
signal.signal(signal.SIGINT, signal.default_int_handler)
checkpoint_writer._GIVE_UP_SECONDS = 0.01
def write(path, *_):
  (path / 'state.safetensors').touch()
  print('writing', flush=True)
  sys.stdin.readline()
  # Here, so that it does not wake the main thread, which waits.
  signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
  threading.Event().wait()
checkpoint_writer._write_files = write
try:
  with Interruption() as interruption:
    with checkpoint_writer.CheckpointWriter(sys.argv[1], keep_last=0) as writer:
      writer.save(1, {'w': np.ones(3, np.float32)}, {})
except Abandoned as abandoned:
  sys.exit(abandoned.exit_code)
"""


def test_second_signal_ends_a_process_whose_write_is_stuck(tmp_path):
  with subprocess.Popen(
    [sys.executable, '-c', _STUCK, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == 'writing\n'
    process.send_signal(signal.SIGINT)
    assert 'finishing the round in hand' in process.stderr.readline()
    try:
      _, errors = process.communicate('\n', timeout=_LIMIT_SECONDS)
    finally:
      process.kill()
  assert process.returncode == 143
  assert errors == 'fedfish: warning: the last checkpoint is not finished.\n'
  # Nothing has a final name, and the next start removes what is left.
  assert checkpoints.list_rounds(tmp_path) == []
  assert len(os.listdir(tmp_path)) == 1
  with CheckpointWriter(tmp_path, keep_last=0) as writer:
    writer.save(1, _tensors(1), {})
  assert os.listdir(tmp_path) == ['round_00000001']
