"""`fedfish methods`: every method with its settings, traffic and source."""

import json
import pathlib
import sys

import pytest

from tff_fedfish.cli.main import main
from tff_fedfish.methods import registry

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _printed(capsys, *arguments):
  assert main(['methods', *arguments]) == 0
  return capsys.readouterr().out


def test_a_line_for_each(capsys):
  lines = _printed(capsys).splitlines()
  names = [line.split()[0] for line in lines]
  assert names[: len(registry.BUILT_IN)] == list(registry.BUILT_IN)


def test_json(capsys):
  found = {m['name']: m for m in json.loads(_printed(capsys, '--json'))}
  assert registry.BUILT_IN.keys() <= found.keys()
  fish = found['fed_fish']
  assert fish['traffic'] == {'uplink': 2, 'downlink': 1}
  assert 'Dhawan' in fish['source']
  settings = {s['name']: s for s in fish['settings']}
  assert settings['fisher_reduction'] == {
    'name': 'fisher_reduction',
    'kind': 'choice',
    'choices': ['sum', 'mean'],
    'default': 'sum',
    'doc': (
      "Reduction over a client's batches: 'sum' as printed in the paper, or "
      "'mean'. 'second_moment' is a mean: leave it at 'sum'."
    ),
  }
  assert settings['relative_floor']['at_least'] == 0
  assert not found['fed_avg']['settings']


def test_every_setting_is_documented(capsys):
  for method in json.loads(_printed(capsys, '--json')):
    for setting in method['settings'] + method['shared_settings']:
      assert setting['doc'], (method['name'], setting['name'])


def test_the_page_in_docs_is_its_output(capsys):
  page = (_ROOT / 'docs' / 'methods.md').read_text('utf-8')
  assert _printed(capsys, '--markdown') == page, (
    'run `fedfish methods --markdown > docs/methods.md`'
  )


def test_one_method_of_ones_own(capsys):
  text = _printed(capsys, 'own_methods.magnitude_mean')
  assert text.startswith('## Magnitude mean (`own_methods.magnitude_mean`)')
  assert (
    '`algorithm.magnitude_power` | `1.0` | number >= 0 | Exponent p' in text
  )
  assert 'round: 2 up, 1 down' in text
  assert '--config.algorithm.name=own_methods.magnitude_mean' in text


def test_help_of_train_names_them(capsys):
  with pytest.raises(SystemExit):
    main(['train', '--help'])
  text = ' '.join(capsys.readouterr().out.split())
  assert f'name: {", ".join(registry.BUILT_IN)}, or the module' in text


def test_unknown(capsys):
  assert main(['methods', 'no_method', '--json']) == 2
  printed = capsys.readouterr()
  assert not printed.out
  assert "found 'no_method'" in printed.err
  assert printed.err.count('\n') == 1


def test_one_that_reads_other_sections(capsys, tmp_path, monkeypatch):
  (tmp_path / 'my_package').mkdir()
  (tmp_path / 'my_package' / 'reads.py').write_text(
    """
import dataclasses
from own_methods.kept_model import KeptModel

@dataclasses.dataclass(frozen=True, kw_only=True)
class Reads(KeptModel):
  "Reads."

  def traffic(self, config):
    return config.client_work.optimizer
"""
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  assert main(['methods', 'my_package.reads']) == 2
  assert capsys.readouterr().err == (
    "fedfish: error: `traffic` and `kept` of the method 'my_package.reads' "
    'must read `config.algorithm` and `config.model_shape()` only, but raised '
    "'types.SimpleNamespace' object has no attribute 'client_work'.\n"
  )
