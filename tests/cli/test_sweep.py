"""`fedfish sweep` as a user meets it; tests/sweeping has what it does."""

import json
import pathlib

import pytest

from tff_fedfish.config import load

COMMANDS = {'sweep': 'tff_fedfish.cli.sweep'}

_ROOT = pathlib.Path(__file__).parents[2]
_CONFIG = str(_ROOT / 'configs' / 'debian_sweep.py')


def test_dry_run_of_the_shipped_sweep(fedfish, tmp_path):
  code, out, err = fedfish(
    'sweep', '--config', _CONFIG, '--dry_run', '--workdir', tmp_path / 'w'
  )
  assert (code, err) == (0, '')
  lines = [line.split() for line in out.splitlines()]
  # 4,096 tokens in a pass over a cohort: 8 clients x 8 sequences x 64; here
  # over 480 local epochs.
  assert [
    *('fed_fish-client_lr0.1-E16-R30-seed3', '30', '16', '480', '1,966,080'),
    *('new', 'fixed_compute'),
  ] in lines
  assert [
    *('fed_avg-client_lr0.1-E4-R120-seed1', '120', '4', '480', '1,966,080'),
    *('new', 'fixed_rounds,', 'fixed_compute'),
  ] in lines
  # Of a method and seed: 120 + 480 rounds with E = 1, 120 with 4 (which serve
  # both budgets), 120 + 30 with 16: 870, and 600 + 480 + 2,400 = 3,480 local
  # epochs. Six times that: 5,220 and 20,880 x 4,096 tokens. The search has 6
  # runs of 60 rounds and 240 local epochs: 360 and 1,440 x 4,096 more.
  assert out.splitlines()[-1] == (
    '36 runs, 5,580 rounds, 91,422,720 tokens at most; 60 evaluations of 30 '
    'runs.'
  )
  assert not (tmp_path / 'w').exists()


def test_dry_run_of_a_search(fedfish, tmp_path):
  path = tmp_path / 'searched.py'
  path.write_text(
    (_ROOT / 'configs' / 'demo.py').read_text().partition('def get_sweep')[0]
    + """

def get_sweep():
  return dict(
    grid={'algorithm.name': ['fed_avg', 'fed_fish']},
    learning_rate_search=dict(
      settings={'server.learning_rate': [1e-3, 1e-2]},
      num_rounds=10,
      per=['algorithm.name'],
    ),
  )
"""
  )
  code, out, err = fedfish(
    'sweep', '--config', path, '--dry_run', '--config.training.num_rounds=20'
  )
  assert (code, err) == (0, '')
  assert 'Search for learning rates' in out
  rows = [line.split() for line in out.splitlines()]
  assert ['fed_fish-server_lr0.01', '10', '1', '10', '40,960'] in rows
  assert ['fed_fish', '20', '1', '20', '81,920', 'fixed_rounds'] in rows
  # 4 x 10 + 2 x 20 rounds of 4,096 tokens.
  assert '6 runs, 80 rounds, 327,680 tokens at most; 0 evaluations' in out


@pytest.mark.parametrize(
  'path',
  [
    pathlib.Path(_CONFIG),
    *sorted((_ROOT / 'docs' / 'experiments' / 'sweeps').glob('*_sweep.py')),
  ],
  ids=lambda p: p.stem,
)
def test_every_sweep_dry_runs(fedfish, path):
  code, out, err = fedfish('sweep', '--config', path, '--dry_run')
  note = (
    'fedfish: note: fed_fomo ignores server.learning_rate, server.optimizer'
  )
  # The only sweep in which no method has a server step.
  is_personal = path.stem == 'mnist_privacy_sweep'
  assert (code, err) == (0, f'{note}\n' * is_personal)
  unit = 'images' if 'mnist' in path.stem else 'tokens'
  # Beside names of eleven settings the heading takes two lines.
  is_folded = path.stem == 'debian_adamw_controls_sweep'
  assert f'{unit}, at{"" if is_folded else " most"}' in out
  assert f' {unit} at most; ' in out.splitlines()[-1]


def test_the_config_of_a_run_is_no_sweep(fedfish, tmp_path):
  path = tmp_path / 'config.json'
  config = load.load_config(_CONFIG)
  path.write_text(json.dumps(load.to_json_dict(config)))
  code, _, err = fedfish('sweep', '--config', path, '--dry_run')
  assert code == 2
  assert f"'{path}' must define a function `get_sweep()`, but" in err


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (['--config', _CONFIG], '--workdir is required'),
    (
      ['--config', _CONFIG, '--workdir', 'w', '--jobs', '0'],
      '`--jobs` must be at least 1, found 0.',
    ),
    (
      ['--config', str(_ROOT / 'configs' / 'diloco_tiny.py'), '--dry_run'],
      'must define a function `get_sweep()`, but defines none',
    ),
    (['--config', _CONFIG, '--nope'], 'unrecognized arguments: --nope'),
    (
      ['--config', _CONFIG, '--workdir', str(_ROOT / 'configs')],
      '`--workdir` must be empty or new, or hold sweep.json, but',
    ),
  ],
)
def test_argument_error(fedfish, arguments, words):
  code, out, err = fedfish('sweep', *arguments)
  assert (code, out) == (2, '')
  assert words in err
  assert err.count('\n') == 1
  assert not pathlib.Path('w').exists()
