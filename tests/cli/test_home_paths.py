"""`~` in paths of options and settings is the home directory."""

import argparse
import dataclasses
import typing

import pytest

from tff_fedfish.cli import main
from tff_fedfish.config import load
from tff_fedfish.config.names import SECTIONS
from tff_fedfish.methods import registry

COMMANDS = {'group': 'tff_fedfish.cli.group'}
_PATH_OPTIONS = {
  *('checkpoint', 'config', 'corpus', 'data', 'directory', 'input'),
  *('output', 'path', 'personalize_on', 'plot', 'runs', 'uploads'),
  *('vocabulary', 'workdir'),
}
_OTHER_TEXTS = {
  *('algorithm.name', 'engine.ray_address'),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  return tmp_path


def _options(parser):
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      for subparser in action.choices.values():
        yield from _options(subparser)
    else:
      yield action


def test_every_option_that_is_a_path(home):
  expanding = set()
  for action in _options(main._build_parser(main._COMMANDS)):
    if action.metavar in ('DIR', 'FILE', 'FILE|NAME', 'GLOB', 'PATH', 'RUN'):
      assert action.type('~/a') == f'{home}/a', action
      expanding.add(action.dest)
    else:
      assert action.dest not in _PATH_OPTIONS or action.choices, action
  assert expanding == _PATH_OPTIONS


def test_a_command(fedfish, home):
  (home / 'in.jsonl').write_text('{"writer": "a", "text": "b"}\n')
  code, _, errors = fedfish(
    *('group', 'json_lines', '--input=~/in.json?', '--output=~/out'),
    *('--key_field=writer', '--text_field=text', '--num_shards=1'),
  )
  assert code == 0, errors
  assert (home / 'out' / 'manifest.json').exists()


def test_every_setting_that_is_a_path():
  classes = {
    **SECTIONS,
    **registry.BUILT_IN,
  }
  texts, paths = set(), set()
  for section, section_class in classes.items():
    for field in dataclasses.fields(section_class):
      if field.type is str or str in typing.get_args(field.type):
        is_path = field.metadata.get('is_path')
        name = section if section in SECTIONS else 'algorithm'
        (paths if is_path else texts).add(f'{name}.{field.name}')
  assert texts == _OTHER_TEXTS
  assert paths == {
    *('data.directory', 'data.vocabulary', 'training.start_from')
  }


def test_a_config(home):
  config = load.load_config(
    'demo',
    [
      '--config.data.directory=~/corpus',
      '--config.data.vocabulary=~/vocabulary',
      '--config.training.start_from=~',
    ],
  )
  assert config.data.directory == f'{home}/corpus'
  assert config.data.vocabulary == f'{home}/vocabulary'
  assert config.training.start_from == str(home)
