"""JSON that is nested too deeply to parse: one line, whoever reads it."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

from tff_fedfish import files, json_values
from tff_fedfish.cli.main import main
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.run import (
  checkpoint_writer,
  corpus_identity,
  run_directory,
  store,
)
from tff_fedfish.sweeping.record import require_same_sweep

_ROOT = pathlib.Path(__file__).parents[1]
_NESTED = '[' * 200_000


def test_parse_json():
  assert files.parse_json('{"a": [1, null]}') == {'a': [1, None]}
  assert files.parse_json(b'"\xc3\xa9"') == 'é'
  with pytest.raises(ValueError, match='^it is nested too deeply$'):
    files.parse_json(_NESTED)


@pytest.mark.parametrize(
  'name, read',
  [
    ('config.json', lambda path: run_directory.read_config(path.parent)),
    ('corpus.json', lambda path: corpus_identity.read_identity(path.parent)),
    (
      'manifest.json',
      lambda path: store.read_manifest(path.parent),
    ),
    ('summary.json', lambda path: read_evaluation(path.parent)),
    ('tokenizer.json', lambda path: load_tokenizer(path.parent)),
    ('sweep.json', lambda path: require_same_sweep(path.parent, None)),
  ],
)
def test_nested_too_deeply(tmp_path, name, read):
  (tmp_path / name).write_text(_NESTED)
  with pytest.raises(UserError, match=re.escape(name)) as error:
    read(tmp_path / name)
  assert '\n' not in str(error.value)
  assert 'nested too deeply' in str(error.value)


@pytest.mark.parametrize(
  'argv',
  [
    ['train', '--config', str(_ROOT / 'configs' / 'demo.py'), '--workdir'],
    ['evaluate', '--data', 'corpora/c4', '--checkpoint'],
    ['export', '--output', 'exports/mine', '--checkpoint'],
    ['report', '--output', 'report', '--runs'],
  ],
  ids=lambda argv: argv[0],
)
def test_every_command_refuses_the_config_in_one_line(
  tmp_path, monkeypatch, capsys, argv
):
  run = tmp_path / 'run'
  tensors = {'weights': np.zeros(2, np.float32)}
  checkpoint_writer.save_checkpoint(run / 'checkpoints', 1, tensors, {})
  (run / 'config.json').write_text(_NESTED)
  (run / 'metrics.csv').write_text('round\n0\n')
  monkeypatch.chdir(tmp_path)
  assert main([*argv, str(run)]) == 2
  # `train` names what else it would refuse, too.
  line = capsys.readouterr().err.splitlines()[0]
  assert re.match(r"fedfish: error: '.*run/config.json' must ", line)
  assert '(it is nested too deeply). Restore the file' in line


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Schema:
  schema_version: int = 2
  name: str
  sizes: tuple[int, ...]
  is_whole: bool = True


class TestReadJson:
  def _read(self, tmp_path, value):
    path = tmp_path / 'x.json'
    path.write_text(json.dumps(value))
    return files.read_json(path, schema=_Schema)

  def test_values_become_fields(self, tmp_path):
    value = {'schema_version': 1, 'name': 'é', 'sizes': [1, 2]}
    found = self._read(tmp_path, value | {'from_a_later_release': 1})
    assert found == _Schema(schema_version=1, name='é', sizes=(1, 2))

  def test_what_earlier_releases_did_not_write(self):
    found = files.from_json_object(
      {'schema_version': 1, 'name': 'a'},
      schema=_Schema,
      upgrade=lambda value: {'sizes': [3]} | value,
    )
    assert found.sizes == (3,)

  def test_a_newer_schema(self, tmp_path):
    with pytest.raises(files.NewerSchemaError, match='version 3') as error:
      # Before its other values are looked at.
      self._read(tmp_path, {'schema_version': 3, 'name': 1})
    assert error.value.version == 3

  @pytest.mark.parametrize(
    ('change', 'name', 'found', 'words'),
    [
      ({'schema_version': 0}, 'schema_version', 0, 'must be at least 1, but'),
      ({'schema_version': None}, 'schema_version', None, 'a whole number'),
      ({'schema_version': True}, 'schema_version', True, 'a whole number'),
      ({'name': 1}, 'name', 1, '`name` must be text, but is 1$'),
      ({'sizes': [1, -1]}, 'sizes[1]', -1, 'must be a whole number from 0 on'),
      ({'is_whole': 1}, 'is_whole', 1, 'must be true or false, but is 1$'),
    ],
  )
  def test_wrong_values(self, tmp_path, change, name, found, words):
    value = {'schema_version': 2, 'name': 'a', 'sizes': []} | change
    with pytest.raises(json_values.WrongValueError, match=words) as error:
      self._read(tmp_path, value)
    assert (error.value.name, error.value.found) == (name, found)

  def test_missing_value(self, tmp_path):
    with pytest.raises(ValueError, match='^`sizes` is missing$'):
      self._read(tmp_path, {'schema_version': 2, 'name': 'a'})

  def test_no_object(self, tmp_path):
    with pytest.raises(json_values.WrongValueError, match='the whole'):
      self._read(tmp_path, [])
    with pytest.raises(FileNotFoundError):
      files.read_json(tmp_path / 'nowhere', schema=_Schema)
