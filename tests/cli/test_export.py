"""`fedfish export` as a user meets it."""

import json
import shutil

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


def test_no_checkpoint(fedfish, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  code, out, err = fedfish('export', '--checkpoint', 'a', '--output', 'b')
  assert (code, out) == (2, '')
  assert 'must be a checkpoint (' in err
  assert err.count('\n') == 1
  assert not list(tmp_path.iterdir())
