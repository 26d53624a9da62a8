"""Lines on parts of a cohort that take too long, and on a silent Ray."""

import io
import socket
import sys
import threading
import time

import pytest
from waiting import wait_until

from tff_fedfish.runtime import ray_watch


@pytest.mark.parametrize(
  'num_clients, seconds_per_client, told, expected',
  [
    (2, [], 0, 600),
    (3, [1.0], 0, 60),
    # 400 s, the median, for 2 clients, times 10.
    (2, [300.0, 1200.0, 400.0], 0, 8000),
    (2, [300.0], 700, 1400),
  ],
)
def test_when_a_line_is_due(num_clients, seconds_per_client, told, expected):
  found = ray_watch.late_seconds(num_clients, seconds_per_client, told)
  assert found == expected


def test_silence_is_told_once_until_there_is_an_answer(monkeypatch):
  monkeypatch.setattr(ray_watch, '_QUESTION_SECONDS', 0.01)
  monkeypatch.setattr(ray_watch, '_REFUSED_SECONDS', 0.05)
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  closed = threading.Event()

  def lines():
    return sys.stderr.getvalue().splitlines()

  with socket.create_server(('127.0.0.1', 0)) as server:
    port = server.getsockname()[1]
  watched = {"Ray's head": f'127.0.0.1:{port}'}
  thread = threading.Thread(
    target=ray_watch.tell_of_silence, args=(watched, closed)
  )
  thread.start()
  try:
    wait_until(lines)
    # It is not said again.
    time.sleep(0.2)
    assert len(lines()) == 1
    with socket.create_server(('127.0.0.1', port)) as server:
      server.accept()[0].close()
    wait_until(lambda: len(lines()) == 2)
  finally:
    closed.set()
    thread.join()
  assert lines() == 2 * [
    f"fedfish: Ray's head at 127.0.0.1:{port} does not answer "
    '(ConnectionRefusedError: [Errno 111] Connection refused). Unless it comes '
    'back, Ray ends this process within about a minute. Start Ray again on all '
    'machines; the same command then continues from the last checkpoint.'
  ]
