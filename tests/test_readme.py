"""README and docs: commands, links, settings, reasons for drops."""

import dataclasses
import pathlib
import re
import shlex

import pytest

from tff_fedfish.cli.main import main
from tff_fedfish.config import schema as config

_ROOT = pathlib.Path(__file__).parents[1]
_README = (_ROOT / 'README.md').read_text()
_PAGES = [
  _ROOT / 'README.md',
  _ROOT / 'CONTRIBUTING.md',
  *sorted((_ROOT / 'docs').rglob('*.md')),
]


def test_is_short():
  assert len(_README.splitlines()) <= 250


def test_every_setting_is_in_the_reference():
  text = (_ROOT / 'docs' / 'settings.md').read_text()
  for section in dataclasses.fields(config.TrainConfig):
    for field in dataclasses.fields(section.type):
      assert f'| `{section.name}.{field.name}` |' in text


@pytest.mark.parametrize('page', _PAGES, ids=lambda path: path.name)
def test_links_and_pictures_exist(page):
  for target in re.findall(r'\]\(([^)#]+)\)', page.read_text()):
    if not target.startswith('https://'):
      assert (page.parent / target).exists(), target


def test_every_page_is_reachable():
  found, seen = [_ROOT / 'README.md'], set()
  while found:
    page = found.pop()
    if page not in seen:
      seen.add(page)
      targets = re.findall(r'\]\(([^)#]+\.md)', page.read_text())
      found += [
        (page.parent / target).resolve()
        for target in targets
        if not target.startswith('https://')
      ]
  assert not set(_PAGES) - seen


def _commands() -> list[list[str]]:
  """The fedfish command lines of three pages, continued lines joined."""
  pages = ('README.md', 'docs/runs.md', 'docs/clusters.md')
  text = '\n'.join((_ROOT / page).read_text() for page in pages)
  blocks = re.findall(r'```\w*\n(.*?)```', text, re.DOTALL)
  lines = '\n'.join(blocks).replace('\\\n', ' ').splitlines()
  return [
    shlex.split(line)[1:] for line in lines if line.startswith('fedfish ')
  ]


@pytest.mark.parametrize('command', _commands(), ids=lambda c: c[0])
def test_commands_are_understood(command, tmp_path, monkeypatch, capsys):
  # Where the files they name do not exist: a wrong option would be an argument
  # error (SystemExit), a right one gets as far as the missing file.
  config_file = _ROOT / 'configs' / 'small_c4.py'
  command = [
    str(config_file) if argument == 'configs/small_c4.py' else argument
    for argument in command
  ]
  monkeypatch.chdir(tmp_path)
  code = main(command)
  assert code == (0 if command == ['configs'] else 2), capsys.readouterr()
  assert not list(tmp_path.iterdir())


def test_there_are_commands_to_check():
  assert len(_commands()) >= 8


def test_every_reason_for_a_drop_is_documented():
  text = (_ROOT / 'docs' / 'grouping.md').read_text()
  sources = (_ROOT / 'pipelines').glob('*.py')
  reasons = {
    reason
    for path in sources
    for reason in re.findall(r"Drop\(\s*'(\w+)'", path.read_text())
  }
  assert len(reasons) > 15
  for reason in reasons | {'duplicate_text', 'group_cap', 'other_split'}:
    assert f'`{reason}`' in text, reason
