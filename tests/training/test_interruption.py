"""Tests of interruption with real signals in a real process."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tff_fedfish.training import interruption

# Rounds run until told to stop; the reader of its lines sends the signals.
# SIGINT's handler is set because a process that a shell started in the
# background inherits an ignored one.
_LOOP = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tff_fedfish.training.interruption import Interruption
try:
  with Interruption() as interruption:
    print('ready', flush=True)
    while not interruption.requested:
      time.sleep(0.005)
    print('requested', interruption.requested, flush=True)
    if 'stay' in sys.argv:
      time.sleep(600)
  print('restored', signal.getsignal(signal.SIGINT)
        is signal.default_int_handler, flush=True)
finally:
  print('left', flush=True)
sys.exit(interruption.exit_code)
"""


def _start(*arguments):
  return subprocess.Popen(
    [sys.executable, '-c', _LOOP, *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.parametrize(
  'signal_num, how, exit_code',
  [
    (signal.SIGINT, 'press Ctrl-C again', 130),
    (signal.SIGTERM, 'send SIGTERM', 143),
    # A second one would do nothing.
    (signal.SIGHUP, 'send SIGTERM', 129),
  ],
)
def test_first_signal_asks(signal_num, how, exit_code):
  with _start() as process:
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(signal_num)
    out, err = process.communicate(timeout=300)
  assert out == f'requested {signal_num:d}\nrestored True\nleft\n'
  assert err == (
    f'fedfish: finishing the round in hand; {how} to end at once.\n'
  )
  assert process.returncode == exit_code


@pytest.mark.parametrize(
  'second, exit_code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_second_signal_ends_at_once(second, exit_code):
  with _start('stay') as process:
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == 'requested 2\n'
    process.send_signal(second)
    out, err = process.communicate(timeout=300)
  # No block is left on the way.
  assert out == ''
  assert err.splitlines()[1:] == ['fedfish: interrupted.']
  assert process.returncode == exit_code


# One call that Python cannot interrupt to run a handler, as of a graph.
_LONG_CALL = """
import hashlib, signal
from tff_fedfish.training.interruption import Interruption
signal.signal(signal.SIGINT, signal.default_int_handler)
with Interruption():
  print('ready', flush=True)
  hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)
"""


def test_heard_during_one_long_call():
  with subprocess.Popen(
    [sys.executable, '-c', _LONG_CALL],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == 'ready\n'
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert 'finishing the round' in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert time.monotonic() - start < 30


def test_a_hangup_is_never_the_second():
  with _start('stay') as process:
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == 'requested 1\n'
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
  assert process.returncode == 143


def test_second_signal_shows_the_cursor_again():
  ours, theirs = os.openpty()
  code = (
    'import signal\n'
    'from tff_fedfish.progress import Progress\n'
    'from tff_fedfish.training.interruption import Interruption\n'
    "with Interruption(), Progress('train', 2) as progress:\n"
    '  progress.advance()\n'
    '  signal.raise_signal(signal.SIGTERM)\n'
    '  signal.raise_signal(signal.SIGTERM)\n'
  )
  terminal = os.environ | {'TERM': 'xterm'}
  with subprocess.Popen(
    [sys.executable, '-c', code], stderr=theirs, env=terminal
  ) as process:
    os.close(theirs)
    shown = b''
    # The terminal is gone with the process.
    with contextlib.suppress(OSError):
      while data := os.read(ours, 4096):
        shown += data
  os.close(ours)
  assert process.returncode == 143
  assert shown.rindex(b'\x1b[?25l') < shown.rindex(b'\x1b[?25h')
  assert shown.endswith(b'fedfish: interrupted.\r\n')


@pytest.mark.parametrize(
  'signal_num, exit_code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_no_signal_is_lost_in_a_callback(signal_num, exit_code):
  # Python ignores what a callback of the garbage collector raises.
  def callback(phase, info):
    if phase == 'start' and not sent:
      sent.append(signal_num)
      signal.raise_signal(signal_num)

  sent = []
  before = sys.unraisablehook
  gc.callbacks.append(callback)
  try:
    with pytest.raises(interruption.Abandoned) as raised:
      with interruption.abandonable():
        gc.collect()
        assert sent
        time.sleep(60)
  finally:
    gc.callbacks.remove(callback)
  assert raised.value.exit_code == exit_code
  assert sys.unraisablehook is before


@pytest.mark.parametrize('signal_num', [signal.SIGTERM, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(signal_num):
  before = signal.signal(signal_num, signal.SIG_IGN)
  try:
    with interruption.Interruption() as caught:
      signal.raise_signal(signal_num)
    assert caught.requested is None
    assert signal.getsignal(signal_num) == signal.SIG_IGN
  finally:
    signal.signal(signal_num, before)


def test_handlers_are_restored_after_an_error():
  before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
  with pytest.raises(RuntimeError, match='of the loop'):
    with interruption.Interruption():
      raise RuntimeError('of the loop')
  after = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
  assert after == before


def test_unit_of_what_is_finished(capfd):
  with interruption.Interruption(unit='client') as caught:
    signal.raise_signal(signal.SIGTERM)
  assert caught.exit_code == 143
  assert 'finishing the client in hand' in capfd.readouterr().err


def test_nothing_happens_outside_the_main_thread():
  before = signal.getsignal(signal.SIGTERM)
  seen = []

  def loop():
    with interruption.Interruption() as caught:
      seen.extend([signal.getsignal(signal.SIGTERM), caught.requested])
      seen.append(caught.exit_code)

  thread = threading.Thread(target=loop)
  thread.start()
  thread.join()
  assert seen == [before, None, 0]
