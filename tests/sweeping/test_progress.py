"""Progress of several runs: plain lines by hand, and bars on a terminal."""

import io
import re

import pytest
from rich.console import Console

from tff_fedfish.sweeping.jobs import Job
from tff_fedfish.sweeping.progress import JobsProgress


class _Clock:
  """A clock that the test sets."""

  def __init__(self):
    self.seconds = 1000.0

  def __call__(self):
    return self.seconds


@pytest.fixture
def jobs(tmp_path):
  """Two jobs of ten rounds, of which the second's cost four times as much."""
  return [
    Job(
      name=name,
      run=tmp_path / name,
      num_rounds=10,
      train=[],
      evaluations={
        tmp_path / name / 'evaluations' / e: [] for e in evaluations
      },
      log=tmp_path / f'{name}.log',
      round_cost=cost,
    )
    for name, cost, evaluations in (('a', 1.0, ()), ('b', 4.0, ('c4', 'sotu')))
  ]


def _train(job, num_rounds):
  job.run.mkdir(exist_ok=True)
  lines = ['round,train/loss', '0,']
  lines += [f'{r},{9 - r / 4}' for r in range(1, num_rounds + 1)]
  (job.run / 'metrics.csv').write_text('\n'.join(lines) + '\n')


def _plain(jobs, clock=None, **options):
  stream = io.StringIO()
  console = Console(file=stream, force_terminal=False, width=40)
  progress = JobsProgress(
    jobs, console=console, clock=clock or _Clock(), **options
  )
  return progress, lambda: stream.getvalue().splitlines()


def test_a_line_when_a_stage_begins(jobs):
  progress, lines = _plain(jobs)
  job = jobs[1]
  with progress:
    progress.update({'b'}, set())
    _train(job, 9)
    progress.update({'b'}, set())
    _train(job, 10)
    progress.update({'b'}, set())
    (job.run / 'evaluations' / 'c4').mkdir(parents=True)
    progress.update({'b'}, set())
    (job.run / 'evaluations' / 'sotu').mkdir()
    progress.update({'b'}, set())
    progress.update(set(), {'b'})
    progress.update({'a'}, {'b'})
  assert lines() == [
    'b: training',
    'b: evaluating on c4',
    'b: evaluating on sotu',
    'b: finishing',
    'b: ended',
    'a: training',
  ]


def test_line_for_all_by_hand(jobs):
  clock = _Clock()
  # Four rounds had been done before: they say nothing about the speed.
  _train(jobs[0], 4)
  progress, lines = _plain(jobs, clock, title='sweep', interval_seconds=30)
  with progress:
    clock.seconds += 29
    progress.update({'a'}, set())
    _train(jobs[0], 7)
    clock.seconds += 1
    progress.update({'a'}, set())
    clock.seconds += 29
    progress.update({'a'}, set())
    _train(jobs[0], 10)
    clock.seconds += 1
    progress.update({'b'}, {'a'}, {'a'})
  # After 30 s: 3 of a's rounds done, 3 left; b has 10 rounds and 2 evaluations
  # of 2 rounds each, 14, which cost 4 each: (3 + 56) * 30 s / 3 = 590 s.
  # After 60 s: 6 done, 56 left: 56 * 60 s / 6 = 560 s. Losses: 9 - r / 4.
  assert lines() == [
    'a: training',
    'sweep: 0/2 done, 1 running, 1 left, a round 7/10, loss 7.2500, '
    '0:09:50 left',
    'a: ended',
    'b: training',
    'sweep: 1/2 done, 1 running, 0 left, b round 0/10, 0:09:20 left',
  ]


def test_failed_jobs_are_not_waited_for(jobs):
  clock = _Clock()
  progress, lines = _plain(jobs, clock, title='sweep', interval_seconds=10)
  with progress:
    progress.update({'b'}, set())
    progress.write_line('fedfish: error: the run b [x]')
    _train(jobs[0], 5)
    clock.seconds += 10
    progress.update({'a'}, {'b'}, failed={'b'})
  # 5 rounds took 10 s, 5 are left; b's count no more.
  assert lines()[-1] == (
    'sweep: 0/2 done, 1 failed, 1 running, 0 left, a round 5/10, loss 7.7500, '
    '0:00:10 left'
  )
  assert 'fedfish: error: the run b [x]' in lines()


def _frames(jobs, **options):
  stream = io.StringIO()
  console = Console(
    file=stream, force_terminal=True, width=120, _environ={'TERM': 'xterm'}
  )
  progress = JobsProgress(jobs, console=console, clock=_Clock(), **options)

  def frames():
    text = re.sub(r'\x1b\[[\d;?]*[a-zA-Z]', '', stream.getvalue())
    return [line.rstrip() for line in re.split(r'[\r\n]+', text)]

  return progress, frames


def test_bar_of_every_job(jobs):
  progress, frames = _frames(jobs)
  with progress:
    _train(jobs[1], 3)
    progress.update({'b'}, set())
  a, b = frames()[-3:-1] if not frames()[-1] else frames()[-2:]
  assert re.match(r'a {11,}.*waiting', a)
  assert re.match(r'b {11,}.*training, round 3/10 ', b)


def test_bar_for_all_and_for_running_jobs(jobs):
  progress, frames = _frames(jobs, title='sweep')
  with progress:
    _train(jobs[1], 3)
    progress.update({'b'}, set())
    progress._bar.refresh()
    first = frames()
    progress.update({'a'}, {'b'}, {'b'})
  assert any('0/2 done, 1 running, 1 left' in line for line in first)
  assert any('training, round 3/10, loss 8.2500' in line for line in first)
  assert not any(line.startswith('a ') for line in first)
  last = [line for line in frames() if line][-2:]
  assert last[0].startswith('sweep ')
  assert '1/2 done, 1 running, 0 left' in last[0]
  assert last[1].startswith('a ')
