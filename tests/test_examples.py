"""The examples in docs/examples run and show what they say."""

import pathlib
import re
import subprocess
import sys

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'docs' / 'examples'


def test_fed_fish_by_hand():
  done = subprocess.run(
    [sys.executable, str(_EXAMPLES / 'fed_fish_by_hand.py')],
    capture_output=True,
    text=True,
    check=True,
  )
  (difference,) = re.findall(r'round by hand: (\S+)', done.stdout)
  assert float(difference) < 1e-6
  losses = [float(x) for x in re.findall(r'loss (\S+) nats', done.stdout)]
  assert len(losses) == 4
  assert losses == sorted(losses, reverse=True)
