"""CONTRIBUTING.md shows the method that the tests use."""

import pathlib

_ROOT = pathlib.Path(__file__).parents[1]


def test_the_method_is_shown_as_it_is():
  text = (_ROOT / 'CONTRIBUTING.md').read_text('utf-8')
  method = _ROOT / 'tests' / 'own_methods' / 'magnitude_mean.py'
  assert f'```python\n{method.read_text("utf-8")}```' in text
