"""The shipped data is what its README files say."""

import gzip
import hashlib
import json
import pathlib
import re

import pytest

from tff_fedfish import corpora
from tff_fedfish.cli import demo
from tff_fedfish.cli.main import main
from tff_fedfish.data import manifest, tokenizers

_ROW = re.compile(r'^\| (\S+) \| (\d+) \| ([0-9a-f]{16}) \|$', re.MULTILINE)
_MIB = 2**20


def _root() -> pathlib.Path:
  return pathlib.Path(corpora.__file__).parent


@pytest.mark.parametrize(
  ('directory', 'num_files'),
  [(corpora.debian_descriptions(), 6), (corpora.sotu_by_president(), 1)],
)
def test_every_file_has_the_checksum_of_its_readme(directory, num_files):
  rows = _ROW.findall((directory / 'README.md').read_text())
  assert len(rows) == num_files
  for name, num_bytes, sha256 in rows:
    data = (directory / name).read_bytes()
    assert len(data) == int(num_bytes)
    assert hashlib.sha256(data).hexdigest()[:16] == sha256
  # And nothing lies there of which the README does not know.
  archives = {path.name for path in directory.glob('*.gz')}
  assert archives == {name for name, _, _ in rows}


def test_records_have_the_layout_of_c4():
  counts = {}
  for path in sorted(corpora.debian_descriptions().glob('c4-*.json.gz')):
    with gzip.open(path) as lines:
      records = [json.loads(line) for line in lines]
    assert all(set(r) == {'text', 'timestamp', 'url'} for r in records)
    split = path.name.split('.')[0]
    counts[split] = counts.get(split, 0) + len(records)
  # As the README says.
  assert counts == {'c4-train': 26_569, 'c4-validation': 1_398}


def test_addresses_have_authors():
  with gzip.open(corpora.sotu_by_president() / 'sotu.json.gz') as lines:
    records = [json.loads(line) for line in lines]
  assert len(records) == 233
  assert len({record['author'] for record in records}) == 43
  assert all(record['text'] for record in records)


def test_corpora_are_grouped_whole(tmp_path):
  found = {}
  for directory, command in demo.group_commands(tmp_path).items():
    directory.parent.mkdir(exist_ok=True)
    assert main(command) == 0
    counts = manifest.read_manifest(directory).counts
    found[directory.name] = (
      *(counts.records_in, counts.records_out, counts.num_groups),
    )
  # Hosts and presidents are as many as README.md says.
  assert found == {
    'debian_descriptions': (26_569, 26_569, 6_231),
    'sotu_by_president': (233, 233, 43),
  }


def test_every_record_is_attributed():
  path = corpora.debian_descriptions() / 'attribution.tsv.gz'
  header, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
  assert header == 'file\tline\tsource_package\tversion\tmaintainer'
  assert len(rows) == 26_569 + 1_398
  assert all(len(row.split('\t')) == 5 for row in rows)


def test_licenses_lie_beside_the_data():
  licenses = corpora.debian_descriptions() / 'licenses'
  for name, words in (
    ('GPL-2', 'Version 2, June 1991'),
    ('GPL-3', 'Version 3, 29 June 2007'),
  ):
    text = (licenses / name).read_text()
    assert 'GNU GENERAL PUBLIC LICENSE' in text
    assert words in text
    # Whole, to its last section.
    assert 'How to Apply These Terms to Your New Programs' in text
  notice = ' '.join((_root() / 'NOTICE').read_text().split())
  assert 'under the license of that package' in notice
  assert 'not relicensed under its Apache License 2.0' in notice


def test_all_of_it_is_small():
  num_bytes = sum(
    path.stat().st_size for path in _root().rglob('*') if path.is_file()
  )
  assert num_bytes <= 12 * _MIB


def test_shipped_configs_find_the_demo_vocabulary_anywhere(
  small_inputs, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  arguments = ['train', '--config', 'demo', '--dry_run']
  assert main(arguments) == 2
  error = capsys.readouterr().err
  # No corpus, and nothing else.
  assert error.count('fedfish: error: ') == 1
  assert "'runs/demo/corpora/debian_descriptions' is not a grouped" in error
  arguments += [f'--config.data.directory={small_inputs[0]}']
  arguments += ['--config.evaluation.num_clients=0']
  arguments += ['--config.cohorts.cohort_size=2']
  assert main(arguments) == 0
  assert '"vocabulary": "demo",' in capsys.readouterr().out


def test_only_the_name_is_one():
  found = {n: corpora.vocabulary_path(n) for n in ('demo', './demo', 'a/demo')}
  assert found == {
    'demo': corpora.demo_vocabulary(),
    './demo': pathlib.Path('demo'),
    'a/demo': pathlib.Path('a/demo'),
  }


def test_the_demo_vocabulary_fits_the_corpora():
  tokenizer = tokenizers.load_tokenizer(corpora.demo_vocabulary())
  assert tokenizer.size == 2048
  assert tokenizer.lower_case
  assert tokenizer.pieces(range(3)) == ['[PAD]', '[UNK]', '[END]']
  with gzip.open(corpora.sotu_by_president() / 'sotu.json.gz') as lines:
    texts = [json.loads(line)['text'] for line in list(lines)[::10]]
  encoded = tokenizer.encode_batch(texts)
  num_words = sum(len(text.split()) for text in texts)
  num_tokens = sum(map(len, encoded))
  num_unknown = sum((ids == tokenizer.unknown_id).sum() for ids in encoded)
  # The README says 2.1 tokens per word; speeches differ.
  assert 1.9 < num_tokens / num_words < 2.3
  assert num_unknown < 1e-4 * num_tokens
