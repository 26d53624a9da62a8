"""Hosts in a box see each other, differ, and leave nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap

import psutil
import pytest
from cluster.hosts import Cluster, wait_until

pytestmark = pytest.mark.cluster
_TESTS = pathlib.Path(__file__).parents[1]
_SERVER = textwrap.dedent("""
  import socket
  server = socket.create_server(('', 5000))
  print('listens', flush=True)
  while True:
    connection, (address, _) = server.accept()
    connection.sendall(f'{socket.getfqdn()} greets {address}'.encode())
    connection.close()
""")
_CLIENT = textwrap.dedent("""
  import socket, sys
  try:
    with socket.create_connection((sys.argv[1], 5000), timeout=1) as server:
      print(server.recv(99).decode())
  except OSError as error:
    print('no answer')
""")


def _ask(host, name):
  return host.run([sys.executable, '-c', _CLIENT, name]).strip()


def test_hosts_see_each_other_and_nothing_else(tmp_path):
  own = tmp_path / 'own'
  with Cluster(2, own=[own]) as hosts:
    server = hosts[1].start([sys.executable, '-c', _SERVER])
    server.wait_for('listens', 20)
    assert _ask(hosts[0], 'host1') == 'host1 greets 10.77.0.10'
    # Nothing of the world is reached: there is no route to an address of it.
    routes = hosts[0].run(['ip', 'route']).splitlines()
    assert [route.split()[0] for route in routes] == ['10.77.0.0/24']
    hosts[1].cut()
    assert not hosts[0].reaches('host1')
    assert server.pid in [process.pid for process in hosts[1].processes()]
    hosts[1].heal()
    wait_until(lambda: hosts[0].reaches('host1'), 20, 'the link')
    server.kill()
    assert server.wait(0) == -signal.SIGKILL
    assert _ask(hosts[0], 'host1') == 'no answer'
    hosts[0].run(['touch', own / 'mine'])
    assert [host.run(['ls', own]) for host in hosts] == ['mine\n', '']
    (tmp_path / 'corpus').mkdir()
    hosts[1].hide(tmp_path, size='64k')
    with pytest.raises(AssertionError, match='No space left on device'):
      hosts[1].run(
        ['dd', 'if=/dev/zero', 'of=a', 'bs=1k', 'count=65'], cwd=tmp_path
      )
    assert hosts[1].run(['ls'], cwd=tmp_path) == 'a\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['corpus', 'own']
  assert not any(host.processes() for host in hosts)


def test_crash():
  with Cluster(1) as (host,):
    orphan = ['sh', '-c', 'sleep 98 & exec setsid sleep 99']
    process = host.start(orphan)
    wait_until(lambda: len(host.processes('sleep')) == 2, 20, 'the processes')
    found = host.processes()
    host.crash()
    assert process.wait(20) == -signal.SIGKILL
    # A killed process stays until its parent, or init, has read its status.
    wait_until(
      lambda: not any(map(psutil.Process.is_running, found)), 20, 'the end'
    )


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_its_maker(tmp_path, number):
  code = (
    'from cluster.hosts import Cluster\n'
    'with Cluster(1) as (host,):\n'
    "  process = host.start(['sleep', '97'])\n"
    '  print(process.pid, host.tmp, flush=True)\n'
    '  process.wait(60)\n'
  )
  environment = os.environ | {
    'PYTHONPATH': str(_TESTS),
    'TMPDIR': str(tmp_path),
  }
  maker = subprocess.Popen(
    [sys.executable, '-c', code],
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  )
  try:
    with maker.stdout as output:
      pid, directory = output.readline().split()
    maker.send_signal(number)
    assert maker.wait(20) == -number
  finally:
    maker.kill()
  wait_until(lambda: not psutil.pid_exists(int(pid)), 20, 'the end')
  # Only SIGKILL leaves the directory, for the next cluster to remove.
  assert pathlib.Path(directory).exists() == (number == signal.SIGKILL)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tempfile, 'tempdir', str(tmp_path))
    with Cluster(1):
      assert not pathlib.Path(directory).exists()
  assert list(tmp_path.iterdir()) == []
