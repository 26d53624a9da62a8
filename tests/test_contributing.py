"""CONTRIBUTING.md shows the method that the tests use."""

import os
import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[1]


def test_the_method_is_shown_as_it_is():
  text = (_ROOT / 'CONTRIBUTING.md').read_text('utf-8')
  method = _ROOT / 'tests' / 'own_methods' / 'magnitude_mean.py'
  assert f'```python\n{method.read_text("utf-8")}```' in text


def test_its_command_finds_the_method():
  text = (_ROOT / 'CONTRIBUTING.md').read_text('utf-8')
  command = 'PYTHONPATH=tests fedfish methods own_methods.magnitude_mean'
  assert f'\n{command}\n' in text
  # The current directory counts, too, for the installed command.
  for path, directory in ((f'{_ROOT}/tests', '.'), ('', 'tests')):
    found = subprocess.run(
      [sys.executable, '-P', '-m', 'tff_fedfish', *command.split()[2:]],
      env=os.environ | {'PYTHONPATH': f'{_ROOT}{os.pathsep}{path}'},
      cwd=_ROOT / directory,
      capture_output=True,
      text=True,
    )
    assert found.returncode == 0, found.stderr
    assert 'magnitude_power' in found.stdout
