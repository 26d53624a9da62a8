"""The examples in docs/examples run and show what they say."""

import pathlib
import re
import runpy

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'docs' / 'examples'


def test_fed_fish_by_hand(capsys):
  runpy.run_path(str(_EXAMPLES / 'fed_fish_by_hand.py'), run_name='__main__')
  printed = capsys.readouterr().out
  (difference,) = re.findall(r'round by hand: (\S+)', printed)
  assert float(difference) < 1e-6
  losses = [float(x) for x in re.findall(r'loss (\S+) nats', printed)]
  assert len(losses) == 4
  assert losses == sorted(losses, reverse=True)
