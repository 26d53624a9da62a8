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


def _lines(total, steps, **options):
  """Returns the plain lines of steps, (seconds, what they advance by).

  The console is narrower than the lines, which are not wrapped.
  """
  stream, clock = io.StringIO(), _Clock()
  console = Console(file=stream, force_terminal=False, width=40)
  options |= dict(console=console, clock=clock)
  with Progress('train', total, **options) as progress:
    for seconds, values in steps:
      clock.seconds += seconds
      progress.advance(**values)
  return stream.getvalue().splitlines()


@pytest.mark.parametrize(
  ('total', 'steps', 'options', 'expected'),
  [
    (0, [], {}, []),
    # After round 1: 300 tokens in 2 s = 150 per second; 3 rounds x 2 s = 6 s.
    # After round 2: 1200 in 6 s = 200 per second; 2 rounds x 3 s = 6 s left.
    (
      4,
      [
        (2, dict(num_tokens=300, loss=7.25)),
        (4, dict(num_tokens=900, loss=6.5)),
      ],
      {},
      [
        'train: round 1/4, loss 7.2500, 150 tokens/s, 0:00:06 left',
        'train: round 2/4, loss 6.5000, 200 tokens/s, 0:00:06 left',
      ],
    ),
    # Resumed: 900 + 350 = 1,250, + 350 = 1,600; the speed is that of the new
    # ones only.
    (
      3,
      [(1, dict(num_tokens=350))] * 2,
      dict(completed=1, num_tokens=900),
      [
        'train: round 2/3, tokens 1.25 k, 350 tokens/s, 0:00:01 left',
        'train: round 3/3, tokens 1.60 k, 350 tokens/s',
      ],
    ),
    # One round in 3 s, 9 left: 27 s. All 91 counted, it would say 0 s.
    (
      100,
      [(3, {})],
      dict(completed=90),
      ['train: round 91/100, 0:00:27 left'],
    ),
    # 2 of weight in 4 s: 94 left, 188 s. 8 in 12 s: 88 left, 132 s.
    (
      25,
      [(0, {}), (4, {}), (8, {})],
      dict(weights=[0, 2, 6] + [4] * 22),
      [
        'train: round 1/25',
        'train: round 2/25, 0:03:08 left',
        'train: round 3/25, 0:02:12 left',
      ],
    ),
    # A score stands until the next one.
    (
      2,
      [(0, dict(loss=3.0, score='held-out loss 3.5000 nats')), (0, {})],
      {},
      [
        'train: round 1/2, loss 3.0000, held-out loss 3.5000 nats',
        'train: round 2/2, loss 3.0000, held-out loss 3.5000 nats',
      ],
    ),
    # Not measured in round 2, not finite in round 3.
    (
      3,
      [(0, dict(loss=loss)) for loss in (3.0, None, float('nan'))],
      {},
      [
        'train: round 1/3, loss 3.0000',
        'train: round 2/3, loss 3.0000',
        'train: round 3/3, loss -',
      ],
    ),
  ],
  ids=[
    'no steps',
    'by hand',
    'tokens in all',
    'own speed',
    'weights',
    'score',
    'loss',
  ],
)
def test_plain_lines(total, steps, options, expected):
  assert _lines(total, steps, **options) == expected


def test_a_line_per_tenth_and_no_more():
  lines = _lines(1000, [(0.001, {})] * 1000, unit='client')
  positions = [re.search(r'client ([\d,]+)/1,000', x)[1] for x in lines]
  assert positions == ['1'] + [f'{n}00' for n in range(1, 10)] + ['1,000']
  assert 'loss' not in ''.join(lines) and 'tokens' not in ''.join(lines)


def test_a_line_per_interval_when_rounds_are_slow():
  lines = _lines(1000, [(10, {})] * 9)
  # At 10 s (the first), then 30 s after each line: at 40 s and at 70 s.
  positions = [re.search(r'round (\d+)/', line)[1] for line in lines]
  assert positions == ['1', '4', '7']


def test_speed_is_that_of_the_last_steps():
  # The first round compiles.
  steps = [(seconds, dict(num_tokens=10)) for seconds in (600, *[1] * 99)]
  # At round 100 the last 20 steps took 20 s: 10 per second, 900 s left.
  last = 'train: round 100/1,000, 10 tokens/s, 0:15:00 left'
  assert _lines(1000, steps)[-1] == last


def test_plain_lines_on_a_dumb_terminal():
  stream = io.StringIO()
  console = Console(file=stream, force_terminal=True, _environ={'TERM': 'dumb'})
  with Progress('train', 1, console=console, clock=_Clock()) as progress:
    # No markup, and longer than the console is wide.
    progress.write_line('saved [bold]runs/a[/bold] :smile: ' + 'x' * 60)
    progress.advance(loss=1.0)
  assert stream.getvalue().splitlines() == [
    'saved [bold]runs/a[/bold] :smile: ' + 'x' * 60,
    'train: round 1/1, loss 1.0000',
  ]


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
