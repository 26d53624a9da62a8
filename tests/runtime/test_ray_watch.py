"""Ports that answer, fall silent and come back."""

import contextlib
import socket
import time

import pytest

from tff_fedfish.errors import FailedError
from tff_fedfish.runtime import ray_watch


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
  monkeypatch.setattr(ray_watch, '_PERIOD_SECONDS', 0.01)


@contextlib.contextmanager
def _listener(port=0):
  with socket.create_server(('127.0.0.1', port)) as server:
    yield server.getsockname()


@pytest.fixture
def closed():
  """An address at which nothing listens."""
  with _listener() as address:
    pass
  return address


@contextlib.contextmanager
def _watching(watch):
  try:
    yield watch
  finally:
    watch.close()


def _wait_until(condition):
  deadline = time.monotonic() + 20
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_port_that_comes_back(closed, monkeypatch):
  monkeypatch.setattr(ray_watch, 'LIMIT_SECONDS', 0.2)
  with _watching(ray_watch.Watch(closed)) as watch:
    _wait_until(lambda: watch.is_gone)
    assert watch.silent_seconds >= 0.2 and not watch.has_answered
    with _listener(closed[1]):
      _wait_until(lambda: watch.has_answered)
      assert not watch.silent_seconds and not watch.is_gone


def test_head_that_is_silent(closed, monkeypatch):
  with _listener() as own, _watching(ray_watch.HeadWatch(closed, own)) as watch:
    _wait_until(lambda: watch.silent_seconds)
    # For a while nothing is said of it.
    watch.require()
    monkeypatch.setattr(ray_watch, 'LIMIT_SECONDS', 0.0)
    with pytest.raises(
      FailedError,
      match=rf"Ray's head at 127.0.0.1:{closed[1]} no longer answers \(\d s\), "
      'and no round can go on without it. Start Ray again on all machines; the '
      'same command then continues from the last checkpoint',
    ):
      watch.require()
    with pytest.raises(FailedError, match="Ray's head at"):
      watch.wait()


def test_own_process_that_is_gone(closed):
  with _listener() as head:
    with _watching(ray_watch.HeadWatch(head, head)) as watch:
      watch.require()
      watch.wait()
    with (
      _watching(ray_watch.HeadWatch(head, closed)) as watch,
      pytest.raises(
        FailedError,
        match=f"Ray's process on this machine, 127.0.0.1:{closed[1]}, is gone. "
        'It may have been killed for memory. Start Ray again',
      ),
    ):
      watch.require()
  # On the head's machine both go together, and at once.
  with (
    _watching(ray_watch.HeadWatch(closed, closed)) as watch,
    pytest.raises(FailedError, match="Ray's head at"),
  ):
    watch.require()


def test_last_word(closed, monkeypatch, capfd):
  monkeypatch.setattr(ray_watch, '_LAST_WORD_SECONDS', 0.1)
  said = ''

  def is_said():
    nonlocal said
    said += capfd.readouterr().err
    return said

  with _listener() as own, _watching(ray_watch.HeadWatch(closed, own)):
    _wait_until(is_said)
    time.sleep(0.2)
  said += capfd.readouterr().err
  assert said.startswith("fedfish: failed: Ray's head at 127.0.0.1:")
  # Once.
  assert said.count('\n') == 1
