"""Ports that answer, fall silent and come back."""

import contextlib
import socket

import pytest
from waiting import wait_until

from tff_fedfish.errors import FailedError
from tff_fedfish.runtime import ray_watch


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
  monkeypatch.setattr(ray_watch, '_PERIOD_SECONDS', 0.01)


@contextlib.contextmanager
def _listener():
  with socket.create_server(('127.0.0.1', 0)) as server:
    yield server.getsockname()


@pytest.fixture
def silent():
  """A socket with a port of its own, at which nobody listens yet."""
  with socket.socket() as found:
    found.bind(('127.0.0.1', 0))
    yield found


@pytest.fixture
def closed(silent):
  """An address at which nothing listens."""
  return silent.getsockname()


@contextlib.contextmanager
def _watching(watch):
  try:
    yield watch
  finally:
    watch.close()


def test_port_that_comes_back(silent, closed, monkeypatch):
  monkeypatch.setattr(ray_watch, 'LIMIT_SECONDS', 0.2)
  with _watching(ray_watch.Watch(closed)) as watch:
    wait_until(lambda: watch.is_gone)
    assert watch.silent_seconds >= 0.2 and not watch.has_answered
    silent.listen(10_000)
    wait_until(lambda: watch.has_answered)
    assert not watch.silent_seconds and not watch.is_gone


def test_head_that_is_silent(closed, monkeypatch):
  monkeypatch.setattr(ray_watch, 'LIMIT_SECONDS', 1000.0)
  with _listener() as own, _watching(ray_watch.HeadWatch(closed, own)) as watch:
    wait_until(lambda: watch.silent_seconds)
    # For a while nothing is said of it.
    watch.require()
    monkeypatch.setattr(ray_watch, 'LIMIT_SECONDS', 0.0)
    with pytest.raises(
      FailedError,
      match=rf"Ray's head at 127.0.0.1:{closed[1]} no longer answers "
      r'\(\d+ s\), '
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
  were_said = []

  class CountingWatch(ray_watch.HeadWatch):
    def on_asked(self):
      super().on_asked()
      were_said.append(self._is_said)

  with _listener() as own, _watching(CountingWatch(closed, own)):
    wait_until(lambda: sum(were_said) >= 10)
  said = capfd.readouterr().err
  assert said.startswith("fedfish: failed: Ray's head at 127.0.0.1:")
  # Once.
  assert said.count('\n') == 1
