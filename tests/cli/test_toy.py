"""`fedfish toy` as a user meets it."""

import functools
import json

import pytest

COMMANDS = {'toy': 'tff_fedfish.cli.toy'}


@pytest.fixture
def small(monkeypatch):
  """Makes the task one that is learned in no time, and not well."""
  from tff_fedfish.toy import results

  monkeypatch.setattr(
    results,
    'ToySettings',
    functools.partial(
      results.ToySettings,
      num_examples=7,
      hidden_widths=(3, 2),
      num_local_steps=4,
    ),
  )


def test_writes_and_prints_the_same_numbers(fedfish, small, tmp_path):
  output = tmp_path / 'new' / 'toy'
  code, out, err = fedfish('toy', '--num_seeds', 2, '--output', output)
  assert code == 0
  assert {path.name for path in output.iterdir()} == {
    'index.html',
    'toy.json',
    'toy.png',
    'toy.svg',
  }
  found = json.loads((output / 'toy.json').read_text())
  assert len(found['seeds']) == found['settings']['num_seeds'] == 2
  for support, words in (
    ('full', 'full overlap'),
    ('partial', 'partial overlap'),
    ('none', 'no overlap'),
  ):
    summary = found['summary'][support]
    difference = summary['fed_fish_minus_fed_avg']
    [line] = [line for line in out.splitlines() if words in line]
    assert [cell.strip() for cell in line.split('│')[1:-1]] == [
      words,
      *(f'{entry["mean"]:z.4f}' for entry in summary['barrier'].values()),
      f'{difference["mean"]:z.4f}',
      f'{difference["ci_low"]:z.4f} to {difference["ci_high"]:z.4f}',
      f'{summary["num_seeds_fed_fish_lower"]} of 2',
      f'{summary["best_constant_barrier"]:z.4f}',
    ]
  assert out.splitlines()[-1] == f'Page: {output / "index.html"}'
  # Progress is plain lines, and not where results are.
  assert [line.split(',')[0] for line in err.splitlines()] == [
    'toy: seed 1/2',
    'toy: seed 2/2',
  ]
  # Equal seeds give equal bytes.
  assert (
    fedfish('toy', '--num_seeds', 2, '--output', tmp_path / 'again')[0] == 0
  )
  for path in output.iterdir():
    assert path.read_bytes() == (tmp_path / 'again' / path.name).read_bytes()


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (('--num_seeds', 0), '`--num_seeds` must be at least 1, found 0. Say how'),
    (('--num_seeds', 'x'), "argument --num_seeds: invalid int value: 'x'"),
    (('--output',), 'argument --output: expected one argument'),
    (('somewhere',), 'unrecognized arguments: somewhere'),
  ],
)
def test_bad_arguments(fedfish, arguments, words):
  code, out, err = fedfish('toy', *arguments)
  assert (code, out) == (2, '')
  assert words in err
  assert err.count('\n') == 1


def test_earlier_results_are_left_alone(fedfish, tmp_path):
  (tmp_path / 'toy.json').write_text('mine')
  code, out, err = fedfish('toy', '--output', tmp_path)
  assert (code, out) == (2, '')
  assert err.startswith('fedfish: error: `--output` must be empty or new, but ')
  assert "already holds 'toy.json'. Name another directory, or" in err
  assert (tmp_path / 'toy.json').read_text() == 'mine'


def test_help_says_what_is_written(fedfish):
  code, out, _ = fedfish('toy', '--help')
  assert code == 0
  text = ' '.join(out.split())
  assert 'Examples: fedfish toy' in text
  for part in ('index.html, toy.svg, toy.png', 'toy.json', '(default: runs/'):
    assert part in text
  assert '(default: 10)' in text
