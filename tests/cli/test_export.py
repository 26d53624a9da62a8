"""`fedfish export` as a user meets it."""

import json
import shutil

import pytest

COMMANDS = {'export': 'tff_fedfish.cli.export'}


def test_one_line_says_what_and_where(fedfish, small_run, tmp_path):
  output = tmp_path / 'new' / 'model'
  checkpoint = small_run / 'checkpoints' / 'round_00000002'
  arguments = ['--checkpoint', checkpoint, '--output', output]
  code, out, err = fedfish('export', *arguments, '--format', 'safetensors')
  assert (code, err) == (0, '')
  assert out == f'Round 2, 7,536 parameters: {output}\n'
  assert {path.name for path in output.iterdir()} == {
    'README.md',
    'SHA256SUMS',
    'config.json',
    'model.safetensors',
    'vocabulary',
  }
  # It is not written into.
  code, _, err = fedfish('export', *arguments)
  assert code == 2
  assert '`--output` must be empty or new' in err


def test_method_that_cannot_be_imported(fedfish, small_run, tmp_path):
  ignored = shutil.ignore_patterns('tensorboard', 'round_0000000[012]')
  run = shutil.copytree(small_run, tmp_path / 'run', ignore=ignored)
  config = json.loads((run / 'config.json').read_text())
  config['algorithm'] = {'name': 'no_such_package.method', 'strength': 3}
  (run / 'config.json').write_text(json.dumps(config))
  output = tmp_path / 'out'
  code, out, err = fedfish('export', '--checkpoint', run, '--output', output)
  assert (code, out) == (2, '')
  assert "ModuleNotFoundError: No module named 'no_such_package'" in err
  assert err.count('\n') == 1
  assert not output.exists()


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (['--checkpoint', 'a'], 'the following arguments are required: --output'),
    (['--checkpoint', 'a', '--output', 'b'], 'must be a checkpoint ('),
  ],
)
def test_arguments(fedfish, tmp_path, monkeypatch, arguments, words):
  monkeypatch.chdir(tmp_path)
  code, out, err = fedfish('export', *arguments)
  assert (code, out) == (2, '')
  assert words in err
  assert err.count('\n') == 1
  assert not list(tmp_path.iterdir())


def test_help(fedfish):
  code, out, _ = fedfish('export', '--help')
  assert code == 0
  assert '(default: saved_model,safetensors)' in ' '.join(out.split())
  assert max(map(len, out.splitlines())) <= 80
