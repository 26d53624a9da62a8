"""Commands of the pages run, with a small model; others say what they need."""

import gzip
import json
import pathlib
import re

import doc_pages

from tff_fedfish import corpora
from tff_fedfish.cli.main import main

_NUM_WRITERS = 30
_PER_WRITER = 20
# Each page goes on where the one before it ended.
_PAGES = (
  'README.md',
  'docs/ten_minutes.md',
  'docs/report.md',
  'docs/export.md',
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


def _commands(page):
  return [c for c in doc_pages.commands('fedfish') if c.page == page]


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
  writers = [w for w, found in passages.items() if len(found) >= _PER_WRITER]
  with open(path, 'w', encoding='utf-8') as file:
    for writer in writers[:_NUM_WRITERS]:
      for text in passages[writer][:_PER_WRITER]:
        file.write(json.dumps({'writer': writer, 'text': text}) + '\n')


def test_unmarked_commands_run(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  _write_notes(tmp_path / 'notes.jsonl')
  # The pages name the shipped texts as they lie in the repository.
  (tmp_path / 'tff_fedfish').symlink_to(doc_pages.ROOT / 'tff_fedfish')
  printed = {}
  for page in _PAGES:
    printed[page] = ''
    for command in _commands(page):
      if command.needs:
        continue
      arguments = list(command.arguments[1:])
      code = main([*arguments, *_SMALL.get(arguments[0], ())])
      output = capsys.readouterr()
      assert code == 0, (command, output.err)
      printed[page] += output.out
  for name in ('runs/notes_report', 'runs/report'):
    assert (tmp_path / name / 'index.html').is_file()
  for name in ('model.safetensors', 'saved_model'):
    assert (tmp_path / 'models' / 'fed_fish' / name).exists()
  assert (tmp_path / 'models' / 'fed_fish_gpt2' / 'tokenizer.json').is_file()
  rows = (tmp_path / 'runs/notes/metrics.csv').read_text().splitlines()
  assert [row.partition(',')[0] for row in rows] == ['round', *'0123']
  _require_shown(printed['README.md'])


def _require_shown(printed):
  """Compares what the README shows, but for numbers of another model."""
  readme = (doc_pages.ROOT / 'README.md').read_text('utf-8')
  section = readme.partition('## Your own corpus\n')[2]
  shown = re.findall(r'```\n(.*?)```', section, re.DOTALL)[1]
  for line in shown.splitlines():
    if not re.search(r'\d\.\d', line):
      assert line in printed, line


def test_every_command_runs_or_is_marked():
  unmarked = [
    str(command)
    for command in doc_pages.commands('fedfish')
    if not command.needs and command.page not in _PAGES
    # test_demo.py runs the demo; experiments are records of what was run.
    if command.arguments[1] != 'demo'
    if not command.page.startswith('docs/experiments')
  ]
  assert not unmarked
