"""Commands of the pages run, with a small model; others say what they need."""

import os
import pathlib
import re
import subprocess
import sys

import doc_pages
import pytest

from tff_fedfish.cli.main import main

# Each page goes on where the one before it ended.
_PAGES = (
  *('docs/ten_minutes.md', 'docs/report.md', 'docs/export.md'),
  'docs/planning.md',
)
# Added to the commands, for speed.
_SMALL = {
  'train': (
    *('--config.model.num_layers=1', '--config.model.width=16'),
    *('--config.model.num_heads=2', '--config.evaluation.every_num_rounds=9'),
  ),
  'evaluate': ('--max_sequences_per_client', '8'),
  'generate': ('--num_tokens', '4'),
}


@pytest.fixture
def printed_by(tmp_path, monkeypatch, capsys):
  """Runs the commands of pages; returns what they print."""
  monkeypatch.chdir(tmp_path)
  # The pages name the shipped texts as they lie in the repository.
  (tmp_path / 'tff_fedfish').symlink_to(doc_pages.ROOT / 'tff_fedfish')

  def run(pages):
    printed = ''
    for page in pages:
      for command in doc_pages.commands('fedfish'):
        if command.page == page and not command.needs:
          arguments = list(command.arguments[1:])
          code = main([*arguments, *_SMALL.get(arguments[0], ())])
          output = capsys.readouterr()
          assert code == 0, (command, output.err)
          printed += output.out
    return printed

  return run


@pytest.mark.slow
def test_readme(tmp_path):
  readme = (doc_pages.ROOT / 'README.md').read_text('utf-8')
  section = readme.partition('## Your own corpus\n')[2]
  block, shown = re.findall(r'```\n(.*?)```', section, re.DOTALL)[:2]
  for name in ('docs', 'tff_fedfish'):
    (tmp_path / name).symlink_to(doc_pages.ROOT / name)
  path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
  done = subprocess.run(
    ['bash', '-ec', block],
    cwd=tmp_path,
    env=os.environ | {'PATH': path, 'PYTHONPATH': str(doc_pages.ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'runs/notes_report/index.html').is_file()
  # Another kind of processor may print other digits.
  shown, printed = (
    re.sub(r'\d', '0', re.sub(' +$', '', text, flags=re.MULTILINE))
    for text in (shown, done.stdout)
  )
  assert shown in printed


@pytest.mark.slow
def test_ten_minutes_and_what_follows(printed_by, tmp_path):
  printed_by(_PAGES)
  assert (tmp_path / 'runs/report/index.html').is_file()
  for name in (
    *('fed_fish/model.safetensors', 'fed_fish/saved_model'),
    'fed_fish_gpt2/tokenizer.json',
  ):
    assert (tmp_path / 'exports' / name).exists()


def test_every_command_runs_or_is_marked():
  unmarked = [
    str(command)
    for command in doc_pages.commands('fedfish')
    if not command.needs
    if command.page not in ('README.md', *_PAGES)
    # `make demo` runs the demo; experiments are records of what was run.
    if command.arguments[1] != 'demo'
    if not command.page.startswith('docs/experiments')
  ]
  assert not unmarked
