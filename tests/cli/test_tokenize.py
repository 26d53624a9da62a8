"""`fedfish tokenize` and `fedfish verify` of what it writes, as a user does."""

import os
import signal
import sys

import pytest
from grouping_jobs import group_lines

from tff_fedfish.data import tokenize_corpus
from tff_fedfish.data.token_store import TokenStore

COMMANDS = {
  name: f'tff_fedfish.cli.{name}' for name in ('tokenize', 'verify', 'inspect')
}


@pytest.fixture(name='corpus', scope='module')
def _corpus(tmp_path_factory):
  """Three texts of two hosts."""
  lines = [
    {'text': text, 'url': f'http://{host}/'}
    for host, text in (('a', 'the file'), ('b', 'tool'), ('a', 'a'))
  ]
  return group_lines(tmp_path_factory.mktemp('raw'), lines, num_shards=1)


def test_written_beside_the_corpus(fedfish, corpus):
  code, shown, progress = fedfish('tokenize', corpus, '--vocabulary', 'demo')
  assert code == 0
  output = corpus.with_name('out_tokens')
  assert shown == (
    # Words of the vocabulary, and an end of text for each document.
    '2 clients, 3 documents\n'
    '7 tokens, an end of text per document included: 14 B\n'
    f'Written to {output}\n'
  )
  assert 'tokenize: client 2/2' in progress
  store = TokenStore(output)
  assert list(store.client_ids) == [b'a', b'b']
  code, shown, _ = fedfish('verify', output)
  assert code == 0
  assert shown == f'{output}: OK (2 clients, 3 documents, 7 tokens)\n'


def test_damage_is_found(fedfish, corpus, tmp_path):
  output = tmp_path / 'tokens'
  arguments = ['tokenize', corpus, '--vocabulary', 'demo', '--output', output]
  assert fedfish(*arguments)[0] == 0
  path = output / 'tokens.bin'
  path.write_bytes(path.read_bytes()[::-1])
  code, _, errors = fedfish('verify', output)
  assert code == 2
  assert errors.count('fedfish: error') == 1
  assert 'must have SHA-256' in errors
  # It is no corpus, and nothing is written over it.
  code, _, errors = fedfish('inspect', output)
  assert code == 2
  assert 'must be a grouped corpus, but holds the tokens of one' in errors
  assert 'already holds' in fedfish(*arguments)[2]


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (['--vocabulary', 'nowhere'], "'nowhere' does not exist"),
    (['--vocabulary', 'demo', '--output', sys.executable], 'is a file. Name'),
  ],
)
def test_refused_arguments(fedfish, corpus, arguments, words, tmp_path):
  output = ['--output', tmp_path / 'tokens']
  code, shown, errors = fedfish('tokenize', corpus, *output, *arguments)
  assert (code, shown) == (2, '')
  assert words in errors
  assert errors.count('\n') == 1
  assert not list(tmp_path.iterdir())


def test_remote_directories(fedfish, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for arguments, words in (
    (['s3://bucket/c4'], '`--output` is required for a corpus in a store'),
    (['c4', '--output', 's3://b/tokens'], '`--output` must be a directory on'),
  ):
    code, _, errors = fedfish('tokenize', *arguments, '--vocabulary', 'demo')
    assert code == 2
    assert words in errors
  assert not list(tmp_path.iterdir())


def test_written_beside_a_link(fedfish, corpus, tmp_path):
  (tmp_path / 'c4').symlink_to(corpus)
  (tmp_path / '.c4_tokens.x1').mkdir()
  code, _, errors = fedfish(
    'tokenize', f'{tmp_path}/c4/', '--vocabulary', 'demo'
  )
  assert code == 0
  assert list(TokenStore(tmp_path / 'c4_tokens').client_ids) == [b'a', b'b']
  # Of a killed job.
  assert f'was killed and left: {tmp_path}/.c4_tokens.x1. Remove' in errors


@pytest.mark.parametrize(
  ('signal_num', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_interrupted_it_leaves_nothing(
  fedfish, corpus, tmp_path, monkeypatch, signal_num, code
):
  encode = tokenize_corpus._encode

  def interrupted(*arguments):
    assert list(tmp_path.iterdir())
    os.kill(os.getpid(), signal_num)
    return encode(*arguments)

  monkeypatch.setattr(tokenize_corpus, '_encode', interrupted)
  options = ['--output', tmp_path / 'tokens', '--vocabulary', 'demo']
  found, _, errors = fedfish('tokenize', corpus, *options)
  assert found == code
  assert errors.endswith('fedfish: interrupted.\n')
  assert not list(tmp_path.iterdir())
