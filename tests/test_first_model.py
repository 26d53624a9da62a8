"""The README's five commands, from one's own JSON lines to a report."""

import gzip
import json
import pathlib
import re
import shlex

import pytest

from tff_fedfish import corpora
from tff_fedfish.cli.main import main

_README = pathlib.Path(__file__).parents[1] / 'README.md'
_NUM_WRITERS = 30
_PER_WRITER = 20


def write_notes(path: pathlib.Path) -> None:
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


def _commands():
  """Returns the commands of the first block of 'Your own corpus'."""
  section = _README.read_text('utf-8').partition('## Your own corpus\n')[2]
  block = re.search(r'```\n(.*?)```', section, re.DOTALL)[1]
  lines = block.replace('\\\n', ' ').splitlines()
  return [shlex.split(line) for line in lines]


def test_none_of_the_five_commands_is_refused(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  write_notes(tmp_path / 'notes.jsonl')
  lines = (tmp_path / 'notes.jsonl').read_text('utf-8').splitlines()
  assert len(lines) == _NUM_WRITERS * _PER_WRITER
  commands = _commands()
  assert [command[1] for command in commands] == [
    *('group', 'tokenizer', 'train', 'evaluate', 'report')
  ]
  printed = ''
  for fedfish, *arguments in commands:
    assert fedfish == 'fedfish'
    assert main(arguments) == 0, capsys.readouterr().err
    printed += capsys.readouterr().out
  assert (tmp_path / 'runs' / 'notes_report' / 'index.html').is_file()
  rows = (tmp_path / 'runs/notes/metrics.csv').read_text().splitlines()
  assert [row.partition(',')[0] for row in rows] == ['round', *'0123']
  # What the README shows is what is printed, but for paths and numbers that
  # another processor may round otherwise.
  section = _README.read_text('utf-8').partition('## Your own corpus\n')[2]
  shown = re.findall(r'```\n(.*?)```', section, re.DOTALL)[1]
  for line in shown.splitlines():
    if not re.search(r'\d\.\d', line):
      assert line in printed, line


@pytest.fixture(autouse=True)
def _no_config_of_that_name(tmp_path):
  # `--config demo` must be the shipped one.
  assert not (tmp_path / 'demo').exists()
