"""Hosts in a box: network namespaces joined by a bridge, for tests.

    with Cluster(3) as hosts:
      server = hosts[1].start([sys.executable, '-m', 'http.server', '8000'])
      server.wait_for('Serving HTTP', 20)
      hosts[0].run(['curl', '-s', 'http://host1:8000/'])
      hosts[1].cut()

Each host has a network, a host name, a hosts file, a process table, mounts and
a temporary directory of its own; the disks, the processors and the memory are
this machine's. Nothing has a name outside: no interface, bridge, address or
mount. There is no route from a host to the world, or from here to a host.

The kernel ends everything of a host with the first process of its process
table, and that one with the process that made the cluster, however that ends.
Only the directory of logs may stay behind. Its name holds the process id of
its maker, and the next cluster removes it.
"""

import contextlib
import ctypes
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

_NAME = 'fedfish-cluster'
_NAMESPACES = ('--net', '--uts', '--ipc', '--mount', '--pid')
_PR_SET_PDEATHSIG = 1
# Of a command that takes milliseconds, on a machine with much else to do.
_LIMIT_SECONDS = 30
_LIBC = ctypes.CDLL(None, use_errno=True)


class Process:
  """A process on a host. Ends with the host."""

  def __init__(self, host: 'Host', outer: subprocess.Popen, log: pathlib.Path):
    self.log = log
    """Path of what it prints, on both streams."""
    self._host = host
    self._outer = outer

  @property
  def pid(self) -> int:
    """Process id, as seen from outside the host."""
    found = []

    def is_known():
      # nsenter waits for its only child, which is the command.
      found[:] = self._children()
      return found or self._outer.poll() is not None

    wait_until(is_known, _LIMIT_SECONDS, f'start of {self.log.name}')
    if not found:
      raise AssertionError(f'{self.log.name} has ended:\n{self.text()}')
    return found[0]

  def text(self) -> str:
    """Returns what it has printed so far."""
    return self.log.read_text('utf-8', 'replace')

  def wait_for(self, text: str, timeout: float) -> None:
    """Waits until it has printed a text."""

    def is_there():
      ended = self._outer.poll() is not None
      if text in self.text():
        return True
      if ended:
        raise AssertionError(
          f'{self.log.name} ended with {self._outer.returncode} before it '
          f'printed {text!r}:\n{self.text()[-4000:]}'
        )
      return False

    wait_until(is_there, timeout, f'{text!r} in {self.log}', self.text)

  def has_ended(self) -> bool:
    """Says whether it has ended."""
    return self._outer.poll() is not None

  def wait(self, timeout: float) -> int:
    """Returns the exit code; minus the signal's number if one ended it."""
    try:
      return self._outer.wait(timeout)
    except subprocess.TimeoutExpired:
      raise AssertionError(
        f'{self.log.name} has not ended in {timeout} s:\n{self.text()[-4000:]}'
      ) from None

  def kill(self, number: int = signal.SIGKILL) -> None:
    """Sends a signal to it and to every process that it has started."""
    with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
      process = psutil.Process(self.pid)
      for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
          one.send_signal(number)
    if number == signal.SIGKILL:
      self.wait(_LIMIT_SECONDS)

  def _children(self) -> list[int]:
    pid = self._outer.pid
    with contextlib.suppress(OSError):
      text = pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text()
      return [int(child) for child in text.split()]
    return []


class Host:
  """A host of a cluster. Made by `Cluster`."""

  def __init__(self, number: int, directory: pathlib.Path):
    self.name = f'host{number}'
    """Host name, which every host of the cluster resolves."""
    self.address = f'10.77.0.{10 + number}'
    """Address on the bridge."""
    self.tmp = directory / self.name
    """Temporary directory of its own: TMPDIR of its processes."""
    self.tmp.mkdir()
    self._logs = directory / 'logs'
    self._holder, self._init = _hold_namespaces(_NAMESPACES)
    self._switch: int | None = None

  def start(
    self,
    command: Sequence[str | os.PathLike],
    log: str | None = None,
    *,
    cwd: str | os.PathLike = '.',
    env: Mapping[str, str] | None = None,
  ) -> Process:
    """Starts a command on the host, and does not wait.

    Args:
      command: Program and arguments.
      log: Name of the log. Defaults to a number.
      cwd: Working directory, as the host sees it.
      env: Variables besides those of this process.
    """
    number = len(list(self._logs.iterdir()))
    path = self._logs / f'{number:03d}-{self.name}-{log or "log"}'
    with open(path, 'xb') as output:
      outer = subprocess.Popen(
        self._inside(command, os.path.abspath(cwd)),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=os.environ | {'TMPDIR': str(self.tmp)} | dict(env or {}),
        # Ctrl-C is for the process that made the cluster.
        start_new_session=True,
        preexec_fn=_die_with_parent,
      )
    return Process(self, outer, path)

  def run(
    self, command: Sequence[str | os.PathLike], timeout: float = 60, **options
  ) -> str:
    """Returns what a command prints; fails if it does not end with 0.

    Args:
      command: Program and arguments.
      timeout: Seconds that it may take.
      **options: As for `start`.
    """
    process = self.start(command, **options)
    try:
      code = process.wait(timeout)
    finally:
      process.kill()
    assert code == 0, f'{command} on {self.name}: {code}\n{process.text()}'
    return process.text()

  def processes(self, name: str = '') -> list[psutil.Process]:
    """Returns the processes on the host whose command line holds a text."""
    found = []
    for process in psutil.process_iter():
      with contextlib.suppress(psutil.Error, OSError):
        space = os.readlink(f'/proc/{process.pid}/ns/pid')
        if (
          process.pid != self._init
          and space == os.readlink(f'/proc/{self._init}/ns/pid')
          and process.status() != psutil.STATUS_ZOMBIE
          and name in ' '.join(process.cmdline())
        ):
          found.append(process)
    return found

  def reaches(self, name: str) -> bool:
    """Says whether a packet comes back from another host within a second."""
    code = (
      'import socket, sys\n'
      # Nobody listens at port 1: to be refused is an answer.
      'with socket.socket() as probe:\n'
      '  probe.settimeout(1)\n'
      '  try: probe.connect((sys.argv[1], 1))\n'
      '  except ConnectionRefusedError: print("refused")\n'
      '  except OSError: pass\n'
    )
    return bool(self.run([sys.executable, '-c', code, name]))

  def cut(self) -> None:
    """Pulls the plug of the host's network."""
    _inside(self._switch, ['ip', 'link', 'set', self.name, 'down'], '--net')

  def heal(self) -> None:
    """Puts the plug back."""
    _inside(self._switch, ['ip', 'link', 'set', self.name, 'up'], '--net')

  def hide(self, path: str | os.PathLike, size: str = '1m') -> None:
    """Puts an empty disk over a directory, which only this host then lacks.

    Args:
      path: The directory.
      size: Bytes of the disk, such as '64k'. A small one is soon full.
    """
    self._mount(['-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(path)])

  def own(self, path: str | os.PathLike) -> None:
    """Gives the host a directory of its own under a path that all have.

    Args:
      path: The path; made, and left there, if it does not exist.
    """
    private = self.tmp.parent / 'own' / self.name / str(path).strip('/')
    private.mkdir(parents=True, exist_ok=True)
    os.makedirs(path, exist_ok=True)
    self._mount(['--bind', str(private), str(path)])

  def crash(self) -> None:
    """Ends every process of the host, and the host, as a power cut does."""
    # Or it complains that it was left by its child.
    self._holder.send_signal(signal.SIGSTOP)
    with contextlib.suppress(ProcessLookupError):
      os.kill(self._init, signal.SIGKILL)
    self._holder.kill()
    self._holder.wait(_LIMIT_SECONDS)

  def _mount(self, arguments):
    _inside(self._init, ['mount', *arguments], '--mount')

  def _inside(self, command, cwd):
    return [
      *('nsenter', f'--target={self._init}', *_NAMESPACES, '--'),
      *('sh', '-c', 'cd "$0" && exec "$@"', cwd, *map(str, command)),
    ]

  def _plug_in(self, switch: int, hosts_file: pathlib.Path):
    self._switch = switch
    _inside(
      switch,
      ['ip', '-batch', '-'],
      '--net',
      text=f'link add {self.name} type veth peer name eth0 netns {self._init}\n'
      f'link set {self.name} master bridge up\n',
    )
    _inside(
      self._init,
      ['ip', '-batch', '-'],
      '--net',
      text=f'address add {self.address}/24 dev eth0\n'
      'link set eth0 up\nlink set lo up\n',
    )
    _inside(self._init, ['hostname', self.name], '--uts')
    self._mount(['--bind', str(hosts_file), '/etc/hosts'])


class Cluster:
  """Hosts that see each other, and nothing else."""

  def __init__(self, num_hosts: int, *, own: Iterable[str | os.PathLike] = ()):
    """Makes nothing yet.

    Args:
      num_hosts: How many.
      own: Paths at which each host has a directory of its own.
    """
    self._num_hosts = num_hosts
    self._own = tuple(own)

  def __enter__(self) -> list[Host]:
    _remove_left_overs()
    with contextlib.ExitStack() as stack:
      directory = tempfile.mkdtemp(prefix=f'{_NAME}-{os.getpid()}-')
      # Java's processes may still write while they are being ended.
      stack.callback(shutil.rmtree, directory, ignore_errors=True)
      directory = pathlib.Path(directory)
      (directory / 'logs').mkdir()
      holder, switch = _hold_namespaces(['--net', '--pid'])
      stack.callback(holder.wait, _LIMIT_SECONDS)
      stack.callback(holder.kill)
      bridge = 'link add bridge type bridge\nlink set bridge up\n'
      _inside(switch, ['ip', '-batch', '-'], '--net', text=bridge)
      hosts = []
      for i in range(self._num_hosts):
        hosts.append(Host(i, directory))
        stack.callback(hosts[-1].crash)
      names = directory / 'hosts'
      lines = [f'{host.address} {host.name}\n' for host in hosts]
      names.write_text(''.join(['127.0.0.1 localhost\n', *lines]))
      for host in hosts:
        host._plug_in(switch, names)
        for path in self._own:
          host.own(path)
      self._stack = stack.pop_all()
    return hosts

  def __exit__(self, *_) -> None:
    self._stack.close()


def why_not() -> str | None:
  """Returns why there can be no cluster on this machine; None if there can."""
  if platform.system() != 'Linux' or os.geteuid():
    return 'network namespaces need root on Linux'
  for program in ('ip', 'unshare', 'nsenter', 'mount', 'hostname'):
    if not shutil.which(program):
      return f'there is no program {program}'
  command = ['unshare', *_NAMESPACES, '--fork', '--mount-proc', 'true']
  done = subprocess.run(command, capture_output=True, text=True)
  return done.stderr.strip() or None if done.returncode else None


def wait_until(
  condition: Callable[[], object],
  timeout: float,
  name: str,
  details: Callable[[], str] = str,
) -> None:
  """Waits until a condition holds; fails if that takes too long.

  Args:
    condition: Called again and again.
    timeout: Seconds to wait.
    name: What is waited for, for the message.
    details: Called for the end of the message.
  """
  deadline = time.monotonic() + timeout
  while not condition():
    if time.monotonic() > deadline:
      raise AssertionError(
        f'waited {timeout} s in vain for {name}\n{details()[-4000:]}'
      )
    time.sleep(0.02)


def _hold_namespaces(kinds: Iterable[str]) -> tuple[subprocess.Popen, int]:
  """Returns a process that keeps namespaces, and the id of their first one."""
  # Orphans of a host are its first process's, which must not keep them.
  script = 'trap "" CHLD; echo ready; exec sleep infinity'
  mounts = ['--mount-proc'] if '--mount' in kinds else []
  holder = subprocess.Popen(
    [
      *('unshare', *kinds, '--fork', '--kill-child', *mounts),
      *('sh', '-c', script),
    ],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    start_new_session=True,
    preexec_fn=_die_with_parent,
  )
  with holder.stdout as output:
    if output.readline() != b'ready\n':
      holder.kill()
      raise AssertionError(f'unshare ended with {holder.wait()}')
  path = pathlib.Path(f'/proc/{holder.pid}/task/{holder.pid}/children')
  return holder, int(path.read_text())


def _inside(target, command, *kinds, text=''):
  done = subprocess.run(
    ['nsenter', f'--target={target}', *kinds, '--', *command],
    input=text,
    capture_output=True,
    text=True,
    timeout=_LIMIT_SECONDS,
  )
  assert not done.returncode, f'{command}: {done.stderr}'


def _die_with_parent():
  _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _remove_left_overs():
  for path in pathlib.Path(tempfile.gettempdir()).glob(f'{_NAME}-*'):
    maker = path.name.removeprefix(f'{_NAME}-').partition('-')[0]
    if maker.isdigit() and not psutil.pid_exists(int(maker)):
      shutil.rmtree(path, ignore_errors=True)
