"""Tests of progress: plain lines by hand, and the bar on a terminal."""

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from tff_fedfish import progress as progress_lib
from tff_fedfish.progress import Progress, stage


class _Clock:
  """A clock that the test sets."""

  def __init__(self):
    self.seconds = 1000.0

  def __call__(self):
    return self.seconds


def _plain(total, clock, **options):
  stream = io.StringIO()
  console = Console(file=stream, force_terminal=False, width=40)
  return Progress('train', total, console=console, clock=clock, **options), (
    lambda: stream.getvalue().splitlines()
  )


def test_plain_line_by_hand():
  clock = _Clock()
  progress, lines = _plain(4, clock)
  with progress:
    clock.seconds += 2.0
    progress.advance(num_tokens=300, loss=7.25)
    clock.seconds += 4.0
    progress.advance(num_tokens=900, loss=6.5)
  # After round 1: 300 tokens in 2 s = 150 per second; 3 rounds x 2 s = 6 s.
  # After round 2: 1200 in 6 s = 200 per second; 2 rounds x 3 s = 6 s left.
  # The lines are longer than the console is wide, and are not wrapped.
  assert lines() == [
    'train: round 1/4, loss 7.2500, 150 tokens/s, 0:00:06 left',
    'train: round 2/4, loss 6.5000, 200 tokens/s, 0:00:06 left',
  ]


def test_tokens_in_all_of_a_resumed_run():
  clock = _Clock()
  progress, lines = _plain(3, clock, completed=1, num_tokens=900)
  with progress:
    for _ in range(2):
      clock.seconds += 1.0
      progress.advance(num_tokens=350)
  # 900 + 350 = 1,250, + 350 = 1,600; the speed is that of the new ones only.
  assert lines() == [
    'train: round 2/3, tokens 1.25 k, 350 tokens/s, 0:00:01 left',
    'train: round 3/3, tokens 1.60 k, 350 tokens/s',
  ]


def test_a_line_per_tenth_and_no_more():
  clock = _Clock()
  progress, lines = _plain(1000, clock, unit='client')
  with progress:
    for _ in range(1000):
      clock.seconds += 0.001
      progress.advance()
  positions = [re.search(r'client ([\d,]+)/1,000', x)[1] for x in lines()]
  assert positions == ['1'] + [f'{n}00' for n in range(1, 10)] + ['1,000']
  assert 'loss' not in ''.join(lines()) and 'tokens' not in ''.join(lines())


def test_a_line_per_interval_when_rounds_are_slow():
  clock = _Clock()
  progress, lines = _plain(1000, clock)
  with progress:
    for _ in range(9):
      clock.seconds += 10
      progress.advance()
  # At 10 s (the first), then 30 s after each line: at 40 s and at 70 s.
  positions = [re.search(r'round (\d+)/', line)[1] for line in lines()]
  assert positions == ['1', '4', '7']


def test_a_resumed_loop_estimates_by_its_own_speed():
  clock = _Clock()
  progress, lines = _plain(100, clock, completed=90)
  with progress:
    clock.seconds += 3.0
    progress.advance()
  # One round in 3 s, 9 left: 27 s. All 91 counted, it would say 0 s.
  assert lines() == ['train: round 91/100, 0:00:27 left']


def test_speed_is_that_of_the_last_steps():
  clock = _Clock()
  progress, lines = _plain(1000, clock)
  with progress:
    clock.seconds += 600.0  # The first round compiles.
    progress.advance(num_tokens=10)
    for _ in range(99):
      clock.seconds += 1.0
      progress.advance(num_tokens=10)
  # At round 100 the last 20 steps took 20 s: 10 per second, 900 s left.
  assert lines()[-1] == 'train: round 100/1,000, 10 tokens/s, 0:15:00 left'


def test_loss_that_is_not_measured_or_not_finite():
  clock = _Clock()
  progress, lines = _plain(3, clock)
  with progress:
    # Not measured in round 2.
    for loss in (3.0, None, float('nan')):
      progress.advance(loss=loss)
  assert lines() == [
    'train: round 1/3, loss 3.0000',
    'train: round 2/3, loss 3.0000',
    'train: round 3/3, loss -',
  ]


def test_no_steps_at_all():
  progress, lines = _plain(0, _Clock())
  with progress:
    pass
  assert lines() == []


def test_lines_of_the_caller_are_not_markup():
  progress, lines = _plain(1, _Clock())
  with progress:
    progress.write_line('saved [bold]runs/a[/bold] :smile: ' + 'x' * 60)
  assert lines() == ['saved [bold]runs/a[/bold] :smile: ' + 'x' * 60]


def test_bar_on_a_terminal():
  stream = io.StringIO()
  console = Console(
    file=stream, force_terminal=True, width=100, _environ={'TERM': 'xterm'}
  )
  clock = _Clock()
  with Progress('train', 4, console=console, clock=clock) as progress:
    clock.seconds += 2.0
    progress.advance(num_tokens=300, loss=7.25)
    progress.write_line('saved [a] checkpoint')
    for _ in range(3):
      clock.seconds += 2.0
      progress.advance(num_tokens=300, loss=6.0)
  text = re.sub(r'\x1b\[[\d;?]*[a-zA-Z]', '', stream.getvalue())
  frames = [line.strip() for line in re.split(r'[\r\n]+', text)]
  first = next(line for line in frames if 'round 1/4' in line)
  assert 'loss 7.2500  150 tokens/s  0:00:06 left' in first
  assert 'saved [a] checkpoint' in frames
  last = [line for line in frames if line][-1]
  assert 'round 4/4' in last and 'loss 6.0000  150 tokens/s' in last
  assert '━' * 20 in last
  # The cursor, hidden while the bar lives, is shown again.
  assert stream.getvalue().rindex('\x1b[?25h') > stream.getvalue().rindex(
    '\x1b[?25l'
  )


def test_plain_lines_on_a_dumb_terminal():
  stream = io.StringIO()
  console = Console(file=stream, force_terminal=True, _environ={'TERM': 'dumb'})
  with Progress('train', 1, console=console, clock=_Clock()) as progress:
    progress.advance(loss=1.0)
  assert stream.getvalue() == 'train: round 1/1, loss 1.0000\n'


def test_standard_output_stays_clean():
  script = (
    'from tff_fedfish import progress\n'
    'progress._MIN_STAGE_SECONDS = 0\n'
    'with progress.stage("opening"): pass\n'
    'with progress.Progress("evaluate", 1, unit="client") as p: p.advance()\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, check=True
  )
  assert done.stdout == ''
  first, second = done.stderr.splitlines()
  assert re.fullmatch(r'opening \.\.\. \d+\.\d s', first)
  assert second.startswith('evaluate: client 1/1')


@pytest.mark.parametrize(
  ('is_terminal', 'seconds', 'expected'),
  [
    (True, 0.0, 'one [a] ...\r\x1b[Kone [a] ... 0.0 s\n'),
    # Too short to be told.
    (True, 100.0, 'one [a] ...\r\x1b[K'),
    (False, 0.0, 'one [a] ... 0.0 s\n'),
    (False, 100.0, ''),
  ],
)
def test_stage(is_terminal, seconds, expected, monkeypatch):
  monkeypatch.setattr(progress_lib, '_MIN_STAGE_SECONDS', seconds)
  stream = io.StringIO()
  console = Console(
    file=stream,
    force_terminal=is_terminal,
    width=5,
    _environ={'TERM': 'xterm'},
  )
  with stage('one [a]', console=console):
    pass
  assert stream.getvalue() == expected
  with pytest.raises(KeyError), stage('two', console=console):
    raise KeyError
  failed = 'two ...\r\x1b[K' if is_terminal else ''
  assert stream.getvalue() == expected + failed
