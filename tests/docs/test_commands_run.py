"""Commands of the pages run, with a small model; others say what they need."""

import gzip
import itertools
import json
import pathlib
import re

import doc_pages
import pytest

from tff_fedfish import corpora
from tff_fedfish.cli.main import main

_NUM_WRITERS = 30
_PER_WRITER = 20
# Each page goes on where the one before it in its group ended.
_PAGES = (
  ('README.md',),
  (
    *('docs/ten_minutes.md', 'docs/report.md', 'docs/export.md'),
    'docs/planning.md',
  ),
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


def _write_notes(path: pathlib.Path) -> None:
  """Writes 20 passages of each of 30 presidents."""
  passages = {}
  with gzip.open(
    corpora.sotu_by_president() / 'sotu.json.gz', 'rt', encoding='utf-8'
  ) as file:
    for line in map(json.loads, file):
      sentences = line['text'].split('. ')
      passages.setdefault(line['author'], []).extend(
        '. '.join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)
      )
  writers = [w for w, texts in passages.items() if len(texts) >= _PER_WRITER]
  with open(path, 'w', encoding='utf-8') as file:
    for writer in writers[:_NUM_WRITERS]:
      for text in passages[writer][:_PER_WRITER]:
        file.write(json.dumps({'writer': writer, 'text': text}) + '\n')


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
def test_readme(printed_by, tmp_path):
  _write_notes(tmp_path / 'notes.jsonl')
  printed = printed_by(_PAGES[0])
  assert (tmp_path / 'runs/notes_report/index.html').is_file()
  rows = (tmp_path / 'runs/notes/metrics.csv').read_text().splitlines()
  assert [row.partition(',')[0] for row in rows] == ['round', *'0123']
  # Lines with numbers are those of another model.
  readme = (doc_pages.ROOT / 'README.md').read_text('utf-8')
  section = readme.partition('## Your own corpus\n')[2]
  shown = re.findall(r'```\n(.*?)```', section, re.DOTALL)[1]
  for line in shown.splitlines():
    if not re.search(r'\d\.\d', line):
      assert line in printed, line


@pytest.mark.slow
def test_ten_minutes_and_what_follows(printed_by, tmp_path):
  printed_by(_PAGES[1])
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
    if command.page not in itertools.chain(*_PAGES)
    # `make demo` runs the demo; experiments are records of what was run.
    if command.arguments[1] != 'demo'
    if not command.page.startswith('docs/experiments')
  ]
  assert not unmarked
