"""Runs that are killed again and again end as if nobody had touched them.

SIGKILL leaves a process no moment to tidy up. Every run here is the real
command in its own process, with rounds of some 50 ms, so that kills land in
rounds, between the files of the metrics, and in checkpoints.
"""

import collections
import concurrent.futures
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Literal, NamedTuple

import pytest
import small_runs

from tff_fedfish.run import checkpoints, metrics_files

_ROOT = pathlib.Path(__file__).parents[2]
_NUM_ROUNDS = 12
# FedAvg without scores, as its graphs are built fastest.
_SETTINGS = {
  'algorithm__name': 'fed_avg',
  'client_work__num_local_epochs': 1,
  'evaluation__num_clients': 0,
  'training__num_rounds': _NUM_ROUNDS,
  'checkpoints__every_num_rounds': 2,
  'checkpoints__keep_last': 2,
}
# Of a single process, which takes some 10 s.
_LIMIT_SECONDS = 300
_Phase = Literal['start', 'round', 'metrics', 'checkpoint']


class _Moment(NamedTuple):
  """When to kill a process, counted from its own first round."""

  num_rounds: int
  """Rows of metrics.csv that it may write before."""
  phase: _Phase
  """Phase in which it is killed; 'start': any time before its rounds."""
  delay_seconds: float
  """Waited after that, in the phases 'start' and 'round'."""


class _Killer:
  """Starts `fedfish train` in a directory, and kills it.

  What a process was doing when it ended is read from the files alone: a new
  temporary directory is a checkpoint being written or removed; timings.csv and
  metrics.csv of different lengths are a row, or at the start of a resumed run
  all rows, being written; anything else after the start is a round.
  """

  def __init__(self, inputs, workdir: pathlib.Path):
    self._workdir = workdir
    self._checkpoints = workdir / 'checkpoints'
    self._errors = workdir.with_suffix('.log')
    command = [sys.executable, '-m', 'tff_fedfish', 'train']
    command += ['--config', small_runs.CONFIG, '--workdir', str(workdir)]
    self._command = command + small_runs.overrides(*inputs, **_SETTINGS)

  def start_and_kill(self, moment: _Moment) -> _Phase | None:
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
    return self._phase() if process.returncode else None

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
    last = min(self._num_rows() + moment.num_rounds, _NUM_ROUNDS)
    while self._num_rows() < last and process.poll() is None:
      assert time.monotonic() < deadline, self._errors.read_text()
      time.sleep(0.0005)
    if moment.phase == 'round':
      time.sleep(moment.delay_seconds)
      return
    # At the latest in the last round.
    while self._num_rows() < _NUM_ROUNDS and process.poll() is None:
      if self._phase() == moment.phase:
        # It may be over by now: stopped, the process cannot slip away.
        process.send_signal(signal.SIGSTOP)
        while process.poll() is None and _state(process.pid) != 'T':
          time.sleep(0.0002)
        if self._phase() == moment.phase:
          return
        process.send_signal(signal.SIGCONT)
      assert time.monotonic() < deadline, self._errors.read_text()

  def _phase(self) -> _Phase:
    if not self._is_started():
      return 'start'
    if self._hidden() - self._hidden_before:
      return 'checkpoint'
    if self._num_rows() != self._num_rows('timings.csv'):
      return 'metrics'
    return 'round'

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


def _assert_no_half_checkpoint(workdir):
  for round_num in checkpoints.list_rounds(workdir / 'checkpoints'):
    name = f'checkpoints/round_{round_num:08d}'
    assert checkpoints.load_checkpoint(workdir / name).round_num == round_num


def _assert_same_end(workdir, undisturbed):
  name = 'metrics.csv'
  assert len(metrics_files.read_metrics(workdir / name)) == _NUM_ROUNDS + 1
  assert (workdir / name).read_bytes() == (undisturbed / name).read_bytes()
  found, expected = (
    checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run))
    for run in (workdir, undisturbed)
  )
  assert found.round_num == expected.round_num == _NUM_ROUNDS
  assert found.contents == expected.contents
  assert list(found.tensors) == list(expected.tensors)
  for name, tensor in expected.tensors.items():
    assert found.tensors[name].dtype == tensor.dtype, name
    assert found.tensors[name].shape == tensor.shape, name
    assert found.tensors[name].tobytes() == tensor.tobytes(), name


@pytest.fixture(scope='module')
def undisturbed(small_inputs, tmp_path_factory):
  """The run that nobody kills."""
  workdir = tmp_path_factory.mktemp('killed_runs') / 'undisturbed'
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  return workdir


@pytest.mark.slow
def test_run_killed_twice(small_inputs, undisturbed, tmp_path):
  workdir = tmp_path / 'run'
  killer = _Killer(small_inputs, workdir)
  for moment in (_Moment(0, 'metrics', 0), _Moment(2, 'checkpoint', 0)):
    assert killer.start_and_kill(moment) in ('round', 'metrics', 'checkpoint')
    _assert_no_half_checkpoint(workdir)
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  _assert_same_end(workdir, undisturbed)


def _kill_many_times(inputs, undisturbed, directory, moments):
  """Kills runs at these moments, a new run whenever one has ended.

  Returns:
    How many processes were killed in which phase, and the runs that ended.
  """
  num_killed, num_runs = collections.Counter(), 1
  moments = list(moments)
  while True:
    workdir = directory / f'run{num_runs}'
    killer = _Killer(inputs, workdir)
    phase = 'start'
    while phase is not None and moments:
      phase = killer.start_and_kill(moments[0])
      _assert_no_half_checkpoint(workdir)
      if phase is not None:
        num_killed[phase] += 1
        print(f'{workdir}: {moments.pop(0)} hit {phase!r}', flush=True)
    if not moments:
      killer.run_to_end()
    _assert_same_end(workdir, undisturbed)
    if not moments:
      return num_killed, num_runs
    num_runs += 1


@pytest.mark.slow
def test_runs_killed_thirty_times(small_inputs, undisturbed, tmp_path):
  generator = random.Random(20)
  moments = []
  for phase, number in {
    'start': 4,
    'round': 12,
    'metrics': 7,
    'checkpoint': 7,
  }.items():
    # To import takes seconds, a round some 50 ms.
    longest = 15.0 if phase == 'start' else 0.1
    moments += [
      _Moment(generator.randrange(4), phase, generator.uniform(0.0, longest))
      for _ in range(number)
    ]
  generator.shuffle(moments)
  directories = [tmp_path / 'one', tmp_path / 'other']
  for directory in directories:
    directory.mkdir()
  # Two at a time: a process spends most of its life in starting.
  with concurrent.futures.ThreadPoolExecutor(2) as executor:
    results = list(
      executor.map(
        lambda i: _kill_many_times(
          small_inputs, undisturbed, directories[i], moments[i::2]
        ),
        range(2),
      )
    )
  num_killed = results[0][0] + results[1][0]
  print(f'killed: {dict(num_killed)}; runs: {[runs for _, runs in results]}')
  assert num_killed.total() == 30
  assert num_killed['round'] > 0
  assert num_killed['metrics'] > 0
