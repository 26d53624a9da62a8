"""Commands of pages and help texts: right, up to the files that they name."""

import importlib.util
import pathlib
import re

import doc_pages
import pytest

from tff_fedfish.cli.main import main
from tff_fedfish.config.given import shipped_configs

# What a right command comes to where nothing is that it names: the files, the
# packages of an object store or an engine, a running cluster.
_MISSING = re.compile(
  r'does not exist|matches none|cannot be read \(No such file'
  r'|needs packages that|\(No module named|Could not find any running Ray'
  r'|holds no checkpoints/round_'
  r'|A vocabulary must be a directory with|failed: .(s3|gs)://bucket/'
  r'|how the store is reached|is not there|with a config.json of transformers'
)
# They read no file, and so succeed.
_NEED_NOTHING = (
  *(('configs',), ('doctor',), ('methods',)),
  *(('plan', '--config'), ('sweep', '--dry_run')),
)
_SWEEPS = 'docs/experiments/sweeps/'
# What such a command takes minutes for, but for this.
_QUICK = {'sweep': '--dry_run', 'plan': '--no_timing'}


def _fedfish_commands():
  """Returns all commands but the demo, which needs no file."""
  commands = [*doc_pages.commands('fedfish'), *doc_pages.help_commands()]
  return [
    command
    for command in {c.arguments: c for c in commands}.values()
    if command.arguments[1] != 'demo'
    # It goes on with a run, which has the config.
    if command.arguments[1:3] != ('train', '--workdir')
    if not _is_of_an_earlier_commit(command)
  ]


def _is_of_an_earlier_commit(command):
  """Whether a record of experiments names a sweep that went since."""
  return (
    command.page.startswith('docs/experiments/')
    and command.arguments[1:3] == ('sweep', '--config')
    and command.arguments[3] not in shipped_configs()
    and not pathlib.Path(command.arguments[3]).exists()
  )


# Stores are asked again before they count as missing.
@pytest.mark.parametrize(
  'command',
  [
    pytest.param(
      command,
      marks=[pytest.mark.slow] * ('://bucket' in str(command.arguments)),
    )
    for command in _fedfish_commands()
  ],
  ids=str,
)
def test_commands_are_understood(command, tmp_path, monkeypatch, capsys):
  # Where the files they name do not exist: a wrong option is an argument error
  # (SystemExit), a wrong setting an error of another kind; a right command gets
  # as far as the missing file, and writes nothing.
  arguments = [
    str(doc_pages.ROOT / text) if text.startswith(_SWEEPS) else text
    for text in command.arguments[1:]
  ]
  if arguments[0] in _QUICK:
    arguments.append(_QUICK[arguments[0]])
  monkeypatch.chdir(tmp_path)
  for name in ('AWS_ENDPOINT_URL', 'CLOUD_STORAGE_EMULATOR_ENDPOINT'):
    monkeypatch.setenv(name, 'http://127.0.0.1:9')
  code = main(arguments)
  errors = [
    line
    for line in capsys.readouterr().err.splitlines()
    if line.startswith(('fedfish: error: ', 'fedfish: failed: '))
  ]
  if any(set(words) <= set(arguments) for words in _NEED_NOTHING):
    assert (code, errors) == (0, [])
  else:
    assert errors
    # A store that does not answer is no mistake in the command.
    assert code == (1 if errors[0].startswith('fedfish: failed') else 2)
  assert not [line for line in errors if not _MISSING.search(line)]
  assert not list(tmp_path.iterdir())


def test_pages_say_how_to_have_the_command():
  pages = {command.page for command in doc_pages.commands('fedfish')}
  for page in pages:
    if page.startswith('docs/') and page != 'docs/installation.md':
      text = (doc_pages.ROOT / page).read_text('utf-8')
      assert 'installation.md#the-command' in text, page


@pytest.mark.parametrize('command', doc_pages.commands('make'), ids=str)
def test_make_knows_the_target(command):
  targets = re.findall(
    r'^([\w.%-]+):', (doc_pages.ROOT / 'Makefile').read_text(), re.MULTILINE
  )
  for word in command.arguments[1:]:
    if '=' not in word:
      assert word in targets or re.fullmatch(r'\.venv-\w+', word), word
      lock = word.removeprefix('.venv-')
      if lock != word:
        assert (doc_pages.ROOT / 'requirements' / f'{lock}.lock').is_file()


@pytest.mark.parametrize('command', doc_pages.commands('python'), ids=str)
def test_python_finds_the_module(command):
  _, option, *rest = command.arguments
  if option.endswith('.py'):
    assert (doc_pages.ROOT / option).is_file()
    return
  assert option == '-m'
  module = rest[0]
  package = module.partition('.')[0]
  if package == 'distributed':
    pytest.skip('needs .venv-cluster; `make test-cluster` runs it')
  assert importlib.util.find_spec(module) is not None


def test_there_are_commands_to_check():
  commands = _fedfish_commands()
  assert len(commands) > 60
  assert len({command.page for command in commands}) > 15
  assert len(doc_pages.commands('make')) >= 3
  assert len(doc_pages.commands('python')) >= 3


def test_placeholders_and_continued_lines(tmp_path, monkeypatch):
  page = tmp_path / 'page.md'
  page.write_text(
    '```\n# needs a corpus\nfedfish train --config demo \\\n'
    '    --config.seeds.model_seed=SEED  # and why\nls\n```\nfedfish prose\n'
  )
  monkeypatch.setattr(doc_pages, 'ROOT', tmp_path)
  monkeypatch.setattr(doc_pages, 'PAGES', [page])
  (command,) = doc_pages.commands('fedfish')
  assert command.arguments == (
    *('fedfish', 'train', '--config', 'demo'),
    '--config.seeds.model_seed=1',
  )
  assert command.needs == 'a corpus'
