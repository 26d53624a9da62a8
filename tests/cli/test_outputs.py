"""Outputs that exist: the current directory, and the mount of a volume."""

import os
import subprocess
import sys

import pytest
from grouping_jobs import group_lines

COMMANDS = {
  name: f'tff_fedfish.cli.{name}'
  for name in ('export', 'report', 'tokenize', 'tokenizer')
}


@pytest.fixture(name='corpus', scope='module')
def _corpus(tmp_path_factory):
  lines = [{'text': f'the text {i}', 'url': f'http://h{i}/'} for i in range(9)]
  return group_lines(tmp_path_factory.mktemp('raw'), lines, num_shards=1)


@pytest.fixture(name='output')
def _output(tmp_path, monkeypatch):
  (tmp_path / 'here').mkdir()
  monkeypatch.chdir(tmp_path / 'here')
  return tmp_path / 'here'


@pytest.mark.parametrize(
  ('command', 'names'),
  [
    ('tokenize CORPUS --vocabulary demo', {'token_store.json', 'tokens.bin'}),
    (
      'tokenizer train --data CORPUS --vocabulary_size 256',
      {'tokenizer.json', 'vocab.txt'},
    ),
    ('export --checkpoint RUN --format safetensors', {'model.safetensors'}),
    ('report --runs RUN', {'index.html', 'figures'}),
  ],
)
def test_the_current_directory_stays(
  fedfish, corpus, small_run, output, command, names
):
  command = command.replace('CORPUS', str(corpus))
  command = [*command.replace('RUN', str(small_run)).split(), '--output', '.']
  if 'report' in command:
    # The second time over the first.
    assert fedfish(*command)[0] == 0
  code, _, errors = fedfish(*command)
  assert code == 0, errors
  # By the inode that the shell stands in.
  assert names <= {*os.listdir('.')}
  assert os.path.samefile('.', output)
  assert not [name for name in os.listdir('.') if name.startswith('.')]
  assert os.listdir(output.parent) == ['here']


def test_a_mount_point_is_written_into(tmp_path, small_run):
  (tmp_path / 'volume').mkdir()
  command = f"""
    mount -t tmpfs none volume || exit 77
    for i in 1 2; do
      {sys.executable} -m tff_fedfish report --runs {small_run} --output volume
    done
    ls volume/index.html
  """
  done = subprocess.run(
    ['unshare', '--mount', 'sh', '-c', command],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  if done.returncode in (1, 77):
    pytest.skip(f'this system does not let us mount: {done.stderr}')
  line = f'Report: {tmp_path}/volume/index.html\n'
  assert done.stdout == f'{line}{line}volume/index.html\n', done.stderr
