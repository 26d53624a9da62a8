"""`fedfish export` as a user meets it."""

import json
import re
import shutil

import pytest

COMMANDS = {'export': 'tff_fedfish.cli.export'}


def test_one_line_says_what_and_where(fedfish, small_run, tmp_path):
  output = tmp_path / 'new' / 'model'
  arguments = ['--checkpoint', small_run, '--output', output]
  code, out, err = fedfish('export', *arguments, '--format', 'safetensors')
  assert (code, err) == (0, '')
  assert out == f'Round 4, 7,536 parameters: {output}\n'
  assert {path.name for path in output.iterdir()} == {
    'README.md',
    'SHA256SUMS',
    'config.json',
    'model.safetensors',
    'vocabulary',
  }


def test_what_the_card_cannot_say(fedfish, small_run, tmp_path, monkeypatch):
  from tff_fedfish.exporting import model_card

  remark = 'it could not be read when this was written'
  monkeypatch.setattr(model_card, '_corpus', lambda _: ({}, remark))
  code, out, _ = fedfish(
    'export', '--checkpoint', small_run, '--output', tmp_path / 'out',
    '--format', 'safetensors',
  )  # fmt: skip
  assert code == 0
  assert f'The model card says little of the corpus: {remark}. Name it' in out


def test_unknown_format(fedfish, small_run, tmp_path):
  code, out, err = fedfish(
    'export', '--checkpoint', small_run, '--output', tmp_path / 'out',
    '--format', 'safetensors,onnx',
  )  # fmt: skip
  assert (code, out) == (2, '')
  assert err == (
    'fedfish: error: `--format` must name saved_model or safetensors or '
    'huggingface, or several with a comma between them, found '
    "'safetensors,onnx'. Leave it out for saved_model and safetensors.\n"
  )
  assert not (tmp_path / 'out').exists()


def test_method_that_cannot_be_imported(fedfish, small_run, tmp_path):
  ignored = shutil.ignore_patterns('tensorboard', 'round_0000000[012]')
  run = shutil.copytree(small_run, tmp_path / 'run', ignore=ignored)
  config = json.loads((run / 'config.json').read_text())
  config['algorithm'] = {'name': 'no_such_package.method', 'strength': 3}
  (run / 'config.json').write_text(json.dumps(config))
  output = tmp_path / 'out'
  code, out, err = fedfish('export', '--checkpoint', run, '--output', output)
  assert (code, out) == (2, '')
  assert "'no_such_package.method' must name an importable module" in err
  assert "ModuleNotFoundError: No module named 'no_such_package'" in err
  assert err.count('\n') == 1
  assert not output.exists()


def test_damaged_checkpoint(fedfish, tmp_path):
  checkpoint = tmp_path / 'checkpoints' / 'round_00000001'
  checkpoint.mkdir(parents=True)
  (checkpoint / 'manifest.json').write_text(json.dumps({}))
  code, _, err = fedfish(
    'export', '--checkpoint', checkpoint, '--output', tmp_path / 'out'
  )
  assert code == 2
  assert re.fullmatch(
    r"fedfish: error: `--checkpoint`: '.*/manifest.json' is damaged: .*\n", err
  )


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ([], 'the following arguments are required: --checkpoint, --output'),
    (['--checkpoint', 'a'], 'the following arguments are required: --output'),
    (
      ['--checkpoint', 'a', '--output', 'b', '--nope'],
      'unrecognized arguments: --nope',
    ),
  ],
)
def test_arguments(fedfish, arguments, words):
  code, out, err = fedfish('export', *arguments)
  assert (code, out) == (2, '')
  assert words in err
  assert err.count('\n') == 1


def test_help(fedfish):
  code, out, _ = fedfish('export', '--help')
  assert code == 0
  assert 'fedfish export --checkpoint runs/mine --output models/mine' in out
  assert '(default: both)' in ' '.join(out.split())
  assert max(map(len, out.splitlines())) <= 80
