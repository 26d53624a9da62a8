"""Kills `fedfish train` with SIGKILL, at a file that appears."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import small_runs

from tff_fedfish.run import checkpoints

_ROOT = pathlib.Path(__file__).parents[1]
# Of a single process, which takes some 10 s.
_LIMIT_SECONDS = 300
_NUM_TRIES = 5

Phase = Literal[
  *('start', 'round', 'metrics', 'checkpoint'),
  # Client states or uploads: while some of a round are written; between their
  # rename and the row of metrics.csv; between that and the round's checkpoint.
  *('states', 'committed', 'logged'),
]


class Moment(NamedTuple):
  """When to kill a process, counted from its own first round."""

  num_rounds: int
  """Rows of metrics.csv that it may write before."""
  phase: Phase
  """Phase in which it is killed; 'start': any time before its rounds."""
  delay_seconds: float
  """Waited after that, in the phases 'start' and 'round'."""


class Killer:
  """Starts `fedfish train` in a directory, and kills it.

  What a process was doing when it ended is read from the files alone: a new
  temporary directory is a checkpoint being written or removed; timings.csv and
  metrics.csv of different lengths are a row, or at the start of a resumed run
  all rows, being written; anything else after the start is a round.
  """

  def __init__(
    self,
    inputs,
    workdir: pathlib.Path,
    settings: Mapping[str, Any],
    *,
    written: str = 'client_states',
    runs: types.ModuleType = small_runs,
  ):
    """Starts nothing yet.

    Args:
      inputs: Corpus and vocabulary.
      workdir: The run's directory.
      settings: As for `small_runs.overrides`.
      written: Directory of what clients keep or upload.
      runs: Module of the config and its overrides.
    """
    self._workdir = workdir
    self._num_rounds = settings['training__num_rounds']
    self._checkpoint_every = settings['checkpoints__every_num_rounds']
    self._states = workdir / written
    self._checkpoints = workdir / 'checkpoints'
    self._errors = workdir.with_suffix('.log')
    command = [sys.executable, '-m', 'tff_fedfish', 'train']
    command += ['--config', runs.CONFIG, '--workdir', str(workdir)]
    self._command = command + runs.overrides(*inputs, **settings)

  def start_and_kill(self, moment: Moment) -> Phase | None:
    """Returns what the process was killed in, None if it ended before."""
    self._metrics_before = self._metrics_file()
    self._hidden_before = self._hidden()
    process = self._start()
    try:
      self._wait_for(process, moment)
    finally:
      process.kill()
      process.wait()
    assert process.returncode in (0, -signal.SIGKILL), self._errors.read_text()
    if not process.returncode:
      return None
    return moment.phase if self._is_in(moment.phase) else self._phase()

  def kill_in(self, moment: Moment) -> None:
    """Kills a process in the moment's phase; fails if it is never seen there.

    On a busy machine a run may end before it is seen there. Another one then
    starts in the emptied directory.
    """
    for _ in range(_NUM_TRIES):
      if self.start_and_kill(moment) == moment.phase:
        return
      shutil.rmtree(self._workdir)
    raise AssertionError(f'no run was seen in {moment}')

  def run_to_end(self) -> None:
    """Starts a process that nobody kills."""
    process = self._start()
    try:
      assert process.wait(_LIMIT_SECONDS) == 0, self._errors.read_text()
    finally:
      process.kill()

  def _start(self):
    # A file, not a pipe, which a process of TensorFlow's could hold open.
    with open(self._errors, 'ab') as errors:
      return subprocess.Popen(
        self._command, cwd=_ROOT, stdout=errors, stderr=errors
      )

  def _wait_for(self, process, moment):
    if moment.phase == 'start':
      time.sleep(moment.delay_seconds)
      return
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not self._is_started():
      if process.poll() is not None:
        return
      assert time.monotonic() < deadline, self._errors.read_text()
      time.sleep(0.002)
    last = min(self._num_rows() + moment.num_rounds, self._num_rounds)
    while self._num_rows() < last and process.poll() is None:
      assert time.monotonic() < deadline, self._errors.read_text()
      time.sleep(0.0005)
    if moment.phase == 'round':
      time.sleep(moment.delay_seconds)
      return
    # At the latest when the last round is written.
    while self._num_rows() <= self._num_rounds and process.poll() is None:
      if self._is_in(moment.phase):
        # It may be over by now: stopped, the process cannot slip away.
        process.send_signal(signal.SIGSTOP)
        while process.poll() is None and _state(process.pid) != 'T':
          time.sleep(0.0002)
        if self._is_in(moment.phase):
          return
        process.send_signal(signal.SIGCONT)
      assert time.monotonic() < deadline, self._errors.read_text()

  def _phase(self) -> Phase:
    if not self._is_started():
      return 'start'
    if self._hidden() - self._hidden_before:
      return 'checkpoint'
    if self._num_rows() != self._num_rows('timings.csv'):
      return 'metrics'
    return 'round'

  def _is_in(self, phase):
    if not self._is_started() or phase not in ('states', 'committed', 'logged'):
      return self._phase() == phase
    last = self._num_rows() - 1
    if phase == 'states':
      return any(self._states.glob('.round_*/*.safetensors'))
    if phase == 'committed':
      return checkpoints.path_of(self._states, last + 1).exists()
    path = checkpoints.path_of(self._checkpoints, last)
    return last > 0 and not last % self._checkpoint_every and not path.exists()

  def _is_started(self):
    # A run that starts or resumes first puts a new file in its place.
    return self._metrics_file() != self._metrics_before

  def _metrics_file(self):
    try:
      return (self._workdir / 'metrics.csv').stat().st_ino
    except FileNotFoundError:
      return None

  def _num_rows(self, name='metrics.csv'):
    """Returns the rows after the header, and so the next round's number."""
    try:
      return (self._workdir / name).read_bytes().count(b'\n') - 1
    except FileNotFoundError:
      return -1

  def _hidden(self):
    return {path.name for path in self._checkpoints.glob('.round_*')}


def _state(pid):
  """Returns the letter of /proc for what a process does: 'T' is stopped."""
  text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  return text.rpartition(')')[2].split()[0]
