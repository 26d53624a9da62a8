"""Processes that send the rows of a run's metrics.csv to trackers.

A process reads the file by itself, sends the rows that its tracker lacks, and
ends with the run, also where the run was killed. So a tracker that fails costs
the run nothing: rows wait, and are tried again in the next round, or by the
next process of the run.
"""

import contextlib
import fcntl
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from multiprocessing import connection

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.run import trackers
from tff_fedfish.run.metrics_files import (
  TOKENS_SEEN,
  RowReader,
  logged_rounds,
)

PATIENCE_SECONDS = 30
"""After a run: longest time without a row that was sent."""

_STATE_NAME = 'fedfish.json'


class TrackerProcess:
  """A process of one tracker, within a `with` block.

  Left, the block waits until all rows are sent. It prints how many could not
  be.

  Args:
    name: Key of `trackers.TRACKERS`.
    workdir: The run's directory, with config.json and metrics.csv.
  """

  def __init__(self, name: str, workdir: pathlib.Path):
    self._option, self._workdir = f'`--tracker {name}`', workdir
    self._target = trackers.TRACKERS[name]
    self._remedy = self._usual_remedy = trackers.find(name).remedy
    self._directory = workdir / name
    self._last_sent, self._rest = -1, b''
    self._problem, self._is_told = '', False

  def __enter__(self) -> 'TrackerProcess':
    arguments = self._target, str(self._workdir), str(self._directory)
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    try:
      self._process = subprocess.Popen(
        # -P: modules are found where this process finds them.
        [sys.executable, '-P', '-c']
        + [f'from {__name__} import follow; follow{arguments!r}'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Signals of a terminal go to the run.
        start_new_session=True,
        env=os.environ | {'PYTHONPATH': path},
      )
    except OSError as error:
      # Such as too many processes; told like what happens later.
      self._process = None
      self._problem = f'its process did not start: {error.strerror}'
      return self
    os.set_blocking(self._process.stdin.fileno(), False)
    return self

  def wake(self, write_line: Callable[[str], None]) -> None:
    """Says that there are rows; writes a line where the tracker fails first."""
    if self._process is not None:
      # It is behind, or has died.
      with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(self._process.stdin.fileno(), b'.')
      while self._take_reports(0):
        pass
      code = self._process.poll()
      if code is not None:
        self._problem = self._problem or f'its process ended with {code}'
    if self._problem and not self._is_told:
      self._is_told = True
      write_line(
        f'fedfish: warning: {self._option} failed ({self._problem}). The run '
        f'goes on; rows that are left are tried again. {self._remedy}'
      )

  def __exit__(self, *_) -> None:
    if self._process is not None:
      self._end()
    rounds = []
    # Whoever removes the file has no rows to send.
    with contextlib.suppress(UserError):
      rounds = logged_rounds(self._workdir / 'metrics.csv')
    num_left = sum(round_num > self._last_sent for round_num in rounds)
    if num_left or (self._problem and not self._is_told):
      print(
        f'fedfish: warning: {self._option}: {num_left} of {len(rounds)} rows '
        f'not sent ({self._problem}). {self._remedy} The same command sends '
        'them.',
        file=sys.stderr,
      )

  def _end(self):
    """Waits until all is sent, or nothing is any more; ends the process."""
    self._process.stdin.close()
    try:
      while self._take_reports(PATIENCE_SECONDS):
        pass
      if self._process.wait(1):
        self._problem = f'its process ended with {self._process.returncode}'
    except subprocess.TimeoutExpired:
      self._problem = f'no answer in {PATIENCE_SECONDS} s'
    finally:
      self._process.kill()
      self._process.wait()
      self._process.stdout.close()

  def _take_reports(self, seconds):
    """Reads what the process says; False: nothing in time, or its end."""
    output = self._process.stdout.fileno()
    if not connection.wait([output], seconds):
      return False
    data = os.read(output, 2**16)
    *lines, self._rest = (self._rest + data).split(b'\n')
    for line in lines:
      kind, _, text = line.decode().partition(' ')
      if kind == 'sent':
        self._last_sent, self._problem = int(text), ''
      else:
        self._problem, self._remedy = text, self._usual_remedy
        if kind == 'damaged':
          self._remedy = f'Move {str(self._directory)!r} away.'
    return bool(data)


def follow(target: str, workdir: str, directory: str) -> None:
  """Sends the rows of a run until standard input ends; ends the process.

  It tries whenever something arrives there, and reports on standard output:
  'sent ROUND', 'failed WHY', or 'damaged WHY' of the tracker's directory.

  Args:
    target: The tracker's 'module:class'.
    workdir: The run's directory.
    directory: Directory of the tracker in it. Made if it does not exist.
  """
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    # They are for the run, whose end is seen.
    signal.signal(number, signal.SIG_IGN)
  wakes, reports = os.dup(0), os.dup(1)
  # Libraries and their processes read nothing, and print to nobody.
  with open(os.devnull, 'r+b') as nothing:
    os.dup2(nothing.fileno(), 0)
    os.dup2(nothing.fileno(), 1)

  def report(text):
    # The run may have been killed: nobody reads.
    with contextlib.suppress(BrokenPipeError):
      os.write(reports, ' '.join(text.split())[:400].encode() + b'\n')

  copy = _Copy(target, pathlib.Path(workdir), pathlib.Path(directory), report)
  is_last = False
  while True:
    try:
      copy.send(is_last)
    except _DamagedError as error:
      report(f'damaged {error}')
    except Exception as error:
      report(f'failed {type(error).__name__}: {error}')
    if is_last:
      # Not by `sys.exit`: what a library left could keep it.
      os._exit(0)
    is_last = not os.read(wakes, 2**16)


class _DamagedError(Exception):
  """The tracker's directory cannot be continued."""


class _Copy:
  """Copy of a run in a tracker; `fedfish.json` keeps how far it is."""

  def __init__(self, target, workdir, directory, report):
    self._class, self._workdir = pkgutil.resolve_name(target), workdir
    self._directory, self._report = directory, report
    self._tracker, self._rows, self._num_tokens = None, deque(), 0

  def send(self, is_last):
    """Sends what the tracker lacks; the last time, completes it."""
    self._bound(is_last)
    if self._tracker is None:
      self._start()
    self._rows += self._reader.new_rows()
    while self._rows:
      self._send(self._rows[0])
      self._rows.popleft()
      self._bound(is_last)
    if is_last:
      num_rounds = self._settings['training.num_rounds']
      self._tracker.end(self._last_round == num_rounds)

  def _bound(self, is_last):
    # Ends a process that hangs, where nobody is left to end it.
    signal.alarm(2 * PATIENCE_SECONDS if is_last else 0)

  def _start(self):
    try:
      self._directory.mkdir(exist_ok=True)
    except FileExistsError as error:
      raise _DamagedError(f'{self._directory} is a file') from error
    with contextlib.ExitStack() as stack:
      descriptor = os.open(self._directory, os.O_RDONLY)
      stack.callback(os.close, descriptor)
      # The run's last process may still be sending.
      fcntl.flock(descriptor, fcntl.LOCK_EX)
      run_id, last_round = self._kept()
      self._settings = _settings(self._workdir)
      self._reader = RowReader(self._workdir / 'metrics.csv')
      tracker = self._class(self._directory, run_id, self._settings)
      self._last_round = -1 if tracker.run_id != run_id else last_round
      self._tracker = tracker
      stack.pop_all()
    self._keep()

  def _kept(self):
    """Returns the run's id and the last round that an earlier process kept."""
    path = self._directory / _STATE_NAME
    if not path.exists():
      return None, -1
    try:
      kept = files.parse_json(path.read_bytes())
      return str(kept['run_id']), int(kept['last_round'])
    except (ValueError, KeyError, TypeError) as error:
      raise _DamagedError(f'{path} is damaged: {error}') from error

  def _send(self, row):
    num_tokens = self._num_tokens + (row.get('train/num_tokens') or 0)
    if row['round'] > self._last_round:
      values = {k: v for k, v in row.items() if v is not None}
      self._tracker.log(values | {TOKENS_SEEN: num_tokens})
      self._last_round = row['round']
      self._keep()
    self._num_tokens = num_tokens

  def _keep(self):
    files.write_json(
      self._directory / _STATE_NAME,
      {'run_id': self._tracker.run_id, 'last_round': self._last_round},
    )
    self._report(f'sent {self._last_round}')


def _settings(workdir):
  """Returns the values of config.json by 'section.setting'.

  Without the seed of the noise, which would take its privacy away.
  """
  sections = files.parse_json((workdir / 'config.json').read_bytes())
  return {
    f'{section}.{name}': value
    for section, values in sections.items()
    if isinstance(values, dict)
    for name, value in values.items()
    if name != 'privacy_seed'
  }
