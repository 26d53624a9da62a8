"""`fedfish plan` as a user meets it."""

import json

import pytest

COMMANDS = {'plan': 'tff_fedfish.cli.plan'}

_CONFIG = 'configs/demo.py'


def test_without_timing(fedfish, tmp_path):
  output = tmp_path / 'plan.json'
  code, out, err = fedfish(
    'plan', '--config', _CONFIG, '--no_timing', '--output', output,
    '--config.cohorts.cohort_size=5',
  )  # fmt: skip
  assert (code, err) == (0, '')
  assert 'Round of 5 clients' in out
  assert 'Time here' not in out
  plan = json.loads(output.read_text())
  assert plan['cohort_size'] == 5
  assert plan['time'] is None
  # Every printed peak is the file's.
  assert f'({plan["memory"][0]["peak_bytes"]:,} bytes)' in out


def test_driver_and_workers(fedfish):
  code, out, _ = fedfish(
    'plan', '--config', _CONFIG, '--no_timing', '--config.engine.kind', 'ray'
  )
  assert code == 0
  assert 'Peak memory of the driver' in out
  assert 'Peak memory of each worker' in out


def test_times_and_prints(fedfish, monkeypatch):
  from tff_fedfish.planning import step_time

  monkeypatch.setattr(step_time, 'step_seconds', lambda config: 0.5)
  code, out, _ = fedfish('plan', '--config', _CONFIG)
  assert code == 0
  assert 'timed with 1 and 4 layers, ' in out
  # 8 clients of 2 steps and 2 gradients more.
  assert '16 s' in out


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('', 'is a directory. Name another path.'),
    ('no/plan.json', "no' is no directory. Name another path."),
  ],
)
def test_output_must_be_writable(fedfish, tmp_path, name, words):
  code, out, err = fedfish(
    'plan', '--config', _CONFIG, '--output', tmp_path / name
  )
  assert (code, out) == (2, '')
  assert '`--output` must name a file in an existing directory, but' in err
  assert words in err
  assert err.count('\n') == 1


def test_unknown_setting(fedfish):
  code, _, err = fedfish('plan', '--config', _CONFIG, '--config.model.with=3')
  assert code == 2
  assert '`--config.model.with` is unknown' in err
