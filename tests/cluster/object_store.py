"""An object store that speaks S3, and a network before it that can fail."""

import contextlib
import hashlib
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from cluster import grouping
from pyarrow import fs

PACKAGES = grouping.ROOT / '.venv-cluster'
ENVIRONMENT = {
  'PYTHONPATH': f'{grouping.ENVIRONMENT["PYTHONPATH"]}:{PACKAGES}',
  # Of the store of the tests, which accepts any. No other is asked for.
  'AWS_ACCESS_KEY_ID': 'tests',
  'AWS_SECRET_ACCESS_KEY': 'tests',
  'AWS_DEFAULT_REGION': 'us-east-1',
  'AWS_EC2_METADATA_DISABLED': 'true',
}
BUCKET = 'bucket'
_SLOW_DOWN = (
  b'<Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
  b'</Message></Error>'
)
_CHUNK_BYTES = 1 << 16


def server_command(address: str, port: int) -> list[str]:
  """Returns the command that starts a store."""
  module = ('-m', 'moto.server')
  return [sys.executable, *module, '-H', address, '-p', str(port)]


class Store:
  """A bucket, seen without the network that can fail."""

  def __init__(self, endpoint: str):
    self._files = fs.S3FileSystem(
      endpoint_override=endpoint,
      access_key='tests',
      secret_key='tests',
      region='us-east-1',
      allow_bucket_creation=True,
    )
    self._files.create_dir(BUCKET)

  def contents(self, prefix: str = '') -> dict[str, bytes]:
    """Returns the objects below a directory, by the name that follows it."""
    start = f'{BUCKET}/{prefix}'
    selector = fs.FileSelector(start, recursive=True, allow_not_found=True)
    return {
      entry.path.removeprefix(start): self._read(entry.path)
      for entry in self._files.get_file_info(selector)
      if entry.is_file
    }

  def digests(self, prefix: str) -> dict[str, str]:
    """Returns SHA-256 by name, as `grouping.digests` does."""
    return {
      name: hashlib.sha256(data).hexdigest()
      for name, data in sorted(self.contents(prefix).items())
    }

  def put(self, key: str, data: bytes) -> None:
    """Stores an object."""
    with self._files.open_output_stream(f'{BUCKET}/{key}') as file:
      file.write(data)

  def clear(self) -> None:
    """Deletes all objects."""
    self._files.delete_dir_contents(BUCKET)

  def _read(self, path):
    with self._files.open_input_stream(path) as file:
      return file.read()


@contextlib.contextmanager
def running_store(log: os.PathLike) -> Iterator[tuple[Store, int]]:
  """Yields a store on this machine, and its port."""
  with socket.create_server(('127.0.0.1', 0)) as free:
    port = free.getsockname()[1]
  with open(log, 'wb') as output:
    process = subprocess.Popen(
      server_command('127.0.0.1', port),
      env=os.environ | ENVIRONMENT,
      stdout=output,
      stderr=output,
    )
  try:
    deadline = time.monotonic() + 60
    while True:
      with contextlib.suppress(OSError):
        socket.create_connection(('127.0.0.1', port), timeout=1).close()
        break
      assert process.poll() is None, open(log).read()
      assert time.monotonic() < deadline
      time.sleep(0.1)
    yield Store(f'http://127.0.0.1:{port}'), port
  finally:
    process.kill()
    process.wait()


class Network:
  """Passes requests on to a store, one for each connection, or does not.

  Attributes:
    port: Where it listens on this machine.
    requests: Method and path of each request, in the order in which they came.
    num_failed: How many of them were made to fail.
  """

  def __init__(self, target_port: int):
    """Starts to listen; see `fail`."""
    self._target = '127.0.0.1', target_port
    self._server = socket.create_server(('127.0.0.1', 0), backlog=128)
    self.port = self._server.getsockname()[1]
    self.requests: list[str] = []
    self.num_failed = 0
    self._faults: list[list] = []
    threading.Thread(target=self._accept, daemon=True).start()

  def __enter__(self) -> 'Network':
    return self

  def __exit__(self, *_) -> None:
    # Wakes the thread that accepts, which closing does not.
    self._server.shutdown(socket.SHUT_RDWR)
    self._server.close()

  def fail(self, pattern: str, how: str, times: int = 1 << 30) -> None:
    """Lets requests fail from now on.

    Args:
      pattern: Of requests as they are in `requests`.
      how: '503'; 'cut' in the middle of what is sent; 'cut_answer'.
      times: How many of them.
    """
    self._faults.append([re.compile(pattern), how, times])

  def fail_nth(self, number: int, how: str) -> None:
    """Lets only the n-th request from now on fail."""
    self._faults.clear()
    self.num_failed = 0
    self._faults += [[re.compile('.'), 'pass', number - 1]]
    self._faults += [[re.compile('.'), how, 1]]

  def _accept(self):
    with contextlib.suppress(OSError):
      while True:
        connection, _ = self._server.accept()
        threading.Thread(
          target=self._serve, args=(connection,), daemon=True
        ).start()

  def _serve(self, connection):
    with contextlib.suppress(OSError), connection:
      head = b''
      while b'\r\n\r\n' not in head:
        if not (data := connection.recv(_CHUNK_BYTES)):
          return
        head += data
      request = ' '.join(head.decode('latin1').split(' ')[:2])
      self.requests.append(request)
      how = self._take_fault(request)
      if how == '503':
        # Whoever is in the middle of sending would not read an answer.
        connection.sendall(
          b'HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: '
          b'%d\r\n\r\n%s' % (len(_SLOW_DOWN), _SLOW_DOWN)
        )
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(_CHUNK_BYTES):
          pass
        return
      with socket.create_connection(self._target) as target:
        target.sendall(head)
        self._pass_on(connection, target, head, how)

  def _take_fault(self, request):
    for fault in self._faults:
      if fault[0].search(request) and fault[2] > 0:
        fault[2] -= 1
        self.num_failed += fault[1] != 'pass'
        return fault[1]
    return None

  def _pass_on(self, connection, target, head, how):
    length = re.search(rb'(?i)content-length: (\d+)', head)
    # Some of it may have come with the head.
    limits = {
      connection: int(length[1]) // 2 if how == 'cut' and length else None,
      target: 300 if how == 'cut_answer' else None,
    }
    selector = selectors.DefaultSelector()
    for source, sink in ((connection, target), (target, connection)):
      selector.register(source, selectors.EVENT_READ, sink)
    passed = dict.fromkeys(limits, 0)
    while True:
      for key, _ in selector.select(60):
        data = key.fileobj.recv(_CHUNK_BYTES)
        limit = limits[key.fileobj]
        if limit is not None:
          data = data[: limit - passed[key.fileobj]]
        passed[key.fileobj] += len(data)
        if not data:
          # The store ends every connection behind its answer.
          return
        key.data.sendall(data)
        if passed[key.fileobj] == limit:
          return
