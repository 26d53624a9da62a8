"""`fedfish tokenizer`: what it writes, prints and refuses."""

import json
import pathlib
import resource
import subprocess
import sys

import pytest
import tokenizers as huggingface
from grouping_jobs import group_lines

from tff_fedfish import corpora
from tff_fedfish.cli import main
from tff_fedfish.data import places, tokenizers

_REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(name='grouped', scope='module')
def _grouped(tmp_path_factory):
  """A corpus of two hosts: one with 30 documents, one with one."""
  directory = tmp_path_factory.mktemp('corpus')
  lines = [
    {
      'url': f'https://big.org/{i}',
      'text': f'The lower tower grows slowly: {i}.',
      'timestamp': '2020-01-01',
    }
    for i in range(30)
  ]
  small = {'url': 'https://x.org', 'text': 'Étude Étude', 'timestamp': ''}
  raw = directory / 'c4.json'
  raw.write_text(''.join(f'{json.dumps(line)}\n' for line in [*lines, small]))
  output = str(directory / 'grouped')
  assert (
    main.main(['group', 'c4', '--input', str(raw), '--output', output]) == 0
  )
  return output


def test_many_shards_are_each_opened_once(tmp_path, monkeypatch):
  lines = [{'text': f'word {i}', 'url': f'http://{i}'} for i in range(300)]
  corpus = group_lines(tmp_path, lines, num_shards=600)
  num_opened, open_file = 0, places.open_file

  def count(path, *arguments):
    nonlocal num_opened
    num_opened += str(path).endswith('.tfrecord')
    return open_file(path, *arguments)

  monkeypatch.setattr(places, 'open_file', count)
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
  try:
    options = ['--data', str(corpus), '--output', str(tmp_path / 'vocabulary')]
    assert main.main(['tokenizer', 'train', *options]) == 0
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
  assert num_opened == 600


def _fedfish(*arguments):
  return main.main(['tokenizer', *map(str, arguments)])


def test_train_writes_a_vocabulary(grouped, tmp_path, capsys):
  output = tmp_path / 'new' / 'vocabulary'
  rc = _fedfish(
    *('train', '--data', grouped, '--output', output),
    *('--vocabulary_size', 300, '--max_documents_per_client', 10),
  )
  assert rc == 0
  shown = capsys.readouterr()
  # 10 documents of the big host and 1 of the small one, of 31.
  assert '11 documents of 2 clients (20 left out' in shown.out
  assert f'Written to {output}' in shown.out
  assert 'client 2/2' in shown.err
  assert '(wanted: 300)' in shown.err
  tokenizer = tokenizers.load_tokenizer(output)
  assert (tokenizer.size, tokenizer.lower_case) == (300, True)
  [ids] = tokenizer.encode_batch(['The LOWER etude'])
  assert tokenizer.pieces(ids) == ['the', 'lower', 'etude']
  assert [path.name for path in output.parent.iterdir()] == ['vocabulary']


def test_keep_case_and_the_same_bytes_again(grouped, tmp_path):
  for name in ('a', 'b'):
    output = tmp_path / name
    _fedfish('train', '--data', grouped, '--output', output, '--keep_case')
  for file in ('vocab.txt', 'tokenizer.json'):
    first = (tmp_path / 'a' / file).read_bytes()
    assert first == (tmp_path / 'b' / file).read_bytes()
  tokenizer = tokenizers.load_tokenizer(tmp_path / 'a')
  [ids] = tokenizer.encode_batch(['The Étude'])
  assert tokenizer.pieces(ids) == ['The', 'Étude']


def _shown(capsys, path, text):
  assert _fedfish('show', path, '--text', text) == 0
  lines = capsys.readouterr().out.splitlines()
  facts = (line.split('  ', 1) for line in lines)
  return {name.strip(): fact.strip() for name, fact in facts}


def test_show(capsys):
  shown = _shown(capsys, corpora.demo_vocabulary(), 'Tables, [UNK]')
  assert shown.pop('decoded').startswith('tables , [ un')
  tokenizer = tokenizers.load_tokenizer(corpora.demo_vocabulary())
  [ids] = tokenizer.encode_batch(['Tables, [UNK]'])
  assert shown.pop('pieces').split() == tokenizer.pieces(ids)
  assert shown == {
    'vocabulary': str(corpora.demo_vocabulary()),
    'kind': 'wordpiece',
    'size': '2,048',
    'lower case': 'yes',
    'end of text': '2 [END]',
    'padding': '0 [PAD]',
    'unknown': '1 [UNK]',
    'sha256': tokenizer.sha256,
    'text': 'Tables, [UNK]',
    'token ids': ' '.join(map(str, ids)),
  }


def test_show_a_vocabulary_of_all_bytes(tmp_path, capsys):
  signs = sorted(huggingface.pre_tokenizers.ByteLevel.alphabet())
  pieces = {piece: i for i, piece in enumerate([*signs, '</s>'])}
  tokenizer = huggingface.Tokenizer(huggingface.models.BPE(pieces, []))
  tokenizer.pre_tokenizer = huggingface.pre_tokenizers.ByteLevel()
  tokenizer.save(str(tmp_path / 'tokenizer.json'))
  assert _shown(capsys, tmp_path, 'a')['unknown'] == '-'


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (['--data', '.'], 'manifest.json'),
    (['--output', '.'], "already holds 'thesis.tex'"),
    (['--vocabulary_size', 100], 'between 256 and 1,000,000, found 100'),
    (['--vocabulary_size', 1_000_001], 'and 1,000,000, found 1000001'),
    (['--max_documents_per_client', 0], 'none of the 0 words of the corpus'),
  ],
)
def test_training_that_is_refused(
  grouped, tmp_path, capsys, monkeypatch, options, message
):
  (tmp_path / 'thesis.tex').write_text('x')
  monkeypatch.chdir(tmp_path)
  assert _fedfish('train', '--data', grouped, '--output', 'v', *options) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith('fedfish: error: ') and message in line
  assert [path.name for path in tmp_path.iterdir()] == ['thesis.tex']


@pytest.mark.parametrize(
  'arguments',
  [
    ['train', '--data', 'nowhere', '--output', 'nowhere/v'],
    ['show', 'nowhere'],
  ],
)
def test_errors_do_not_wait_for_tensorflow(arguments):
  code = (
    'import sys\n'
    'from tff_fedfish.cli import main\n'
    'try:\n'
    f'  rc = main.main({["tokenizer", *arguments]!r})\n'
    'except SystemExit as stop:\n'
    '  rc = stop.code\n'
    "heavy = {'tensorflow', 'tensorflow_federated', 'apache_beam'}\n"
    'sys.exit(99 if heavy & set(sys.modules) else rc)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=_REPOSITORY,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2, done.stderr
  assert done.stderr.count('\n') == 1
