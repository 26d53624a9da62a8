"""`fedfish tokenizer`: what it writes, prints and refuses."""

import json
import pathlib
import subprocess
import sys

import pytest

from tff_fedfish import corpora
from tff_fedfish.cli import main
from tff_fedfish.data import tokenizers

_REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(name='grouped', scope='module')
def _grouped(tmp_path_factory):
  """A corpus of two hosts: one with 30 documents, one with one."""
  from pipelines.job import run_group_job
  from pipelines.options import GroupJob

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
  job = GroupJob(
    source_name='c4',
    paths=(str(raw),),
    key='host',
    num_shards=1,
    max_record_bytes=2**20,
  )
  run_group_job(job, directory / 'grouped')
  return directory / 'grouped'


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


def test_keep_case(grouped, tmp_path):
  output = tmp_path / 'v'
  rc = _fedfish(
    *('train', '--data', grouped, '--output', output),
    *('--vocabulary_size', 300, '--keep_case'),
  )
  assert rc == 0
  tokenizer = tokenizers.load_tokenizer(output)
  assert not tokenizer.lower_case
  [ids] = tokenizer.encode_batch(['The Étude'])
  assert tokenizer.pieces(ids) == ['The', 'Étude']


def test_training_again_writes_the_same_bytes(grouped, tmp_path):
  for name in ('a', 'b'):
    _fedfish('train', '--data', grouped, '--output', tmp_path / name)
  for file in ('vocab.txt', 'tokenizer.json'):
    first = (tmp_path / 'a' / file).read_bytes()
    assert first == (tmp_path / 'b' / file).read_bytes()


def test_help_names_every_kind_of_vocabulary(capsys):
  with pytest.raises(SystemExit):
    _fedfish('show', '--help')
  help_text = capsys.readouterr().out
  for kind in ('`train` wrote', 'tokenizer.json', '.txt', '.model'):
    assert kind in help_text


def test_show(capsys):
  rc = _fedfish('show', corpora.demo_vocabulary(), '--text', 'Tables, [UNK]')
  assert rc == 0
  lines = dict(
    line.split('  ', 1) for line in capsys.readouterr().out.splitlines()
  )
  shown = {name.strip(): fact.strip() for name, fact in lines.items()}
  assert shown['kind'] == 'wordpiece'
  assert shown['size'] == '2,048'
  assert shown['lower case'] == 'yes'
  assert shown['end of text'] == '2 [END]'
  assert shown['padding'] == '0 [PAD]'
  assert shown['unknown'] == '1 [UNK]'
  assert shown['text'] == 'Tables, [UNK]'
  tokenizer = tokenizers.load_tokenizer(corpora.demo_vocabulary())
  [ids] = tokenizer.encode_batch(['Tables, [UNK]'])
  assert shown['token ids'] == ' '.join(map(str, ids))
  assert shown['pieces'].split() == tokenizer.pieces(ids)
  assert shown['decoded'].startswith('tables , [ un')


def _refused(capsys, message, *arguments):
  assert _fedfish(*arguments) == 2
  error = capsys.readouterr().err
  assert error.startswith('fedfish: error: ')
  assert error.count('\n') == 1
  assert message in error


def test_not_a_grouped_corpus(tmp_path, capsys):
  output = tmp_path / 'v'
  _refused(
    *(capsys, str(tmp_path)),
    *('train', '--data', tmp_path, '--output', output),
  )
  assert not output.exists()


def test_output_that_holds_something(grouped, tmp_path, capsys):
  (tmp_path / 'thesis.tex').write_text('x')
  _refused(
    *(capsys, "already holds 'thesis.tex'"),
    *('train', '--data', grouped, '--output', tmp_path),
  )
  assert [path.name for path in tmp_path.iterdir()] == ['thesis.tex']


@pytest.mark.parametrize(
  ('option', 'value', 'message'),
  [
    ('--vocabulary_size', 100, 'must be at least 256, found 100'),
    (
      '--vocabulary_size',
      99999999,
      'must be at most 1,000,000, found 99999999',
    ),
    ('--max_documents_per_client', 0, 'must be at least 1, found 0'),
  ],
)
def test_numbers_out_of_range(
  grouped, tmp_path, capsys, option, value, message
):
  output = tmp_path / 'v'
  _refused(
    *(capsys, f'`{option}` {message}'),
    *('train', '--data', grouped, '--output', output, option, value),
  )
  assert not output.exists()


def test_more_pieces_than_the_corpus_has(grouped, tmp_path, capsys):
  # Nothing of that size is built: it is refused after the words are counted.
  argv = ('--data', grouped, '--output', tmp_path / 'v')
  assert _fedfish('train', *argv, '--vocabulary_size', 900_000) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith(
    'fedfish: error: `--vocabulary_size` must be at most 2,048 for this corpus'
  )
  assert 'found 900000: the rest would be unused. Lower it' in line
  assert not (tmp_path / 'v').exists()


def test_show_what_is_not_there(tmp_path, capsys):
  _refused(capsys, 'nowhere', 'show', tmp_path / 'nowhere')
  _refused(
    *(capsys, '`--text` must not be empty'),
    *('show', corpora.demo_vocabulary(), '--text', ''),
  )


@pytest.mark.parametrize(
  'arguments',
  [
    ['train', '--data', 'nowhere', '--output', 'nowhere/v'],
    ['train', '--data', '.', '--output', 'v', '--vocabulary_size', '9'],
    ['show', 'nowhere'],
    ['show', '--text', 'x'],
    ['learn'],
    [],
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
