"""Directories with a GPT-2: which are read, and which are refused."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import gpt2, pretrained

_SHAPE = TransformerConfig(
  num_layers=2, width=4, num_heads=2, vocabulary_size=5, sequence_length=3
)
_BIAS = 'transformer.ln_f.bias'
_EMBEDDING = 'transformer.wte.weight'


def _weights():
  """Weights that are all different: 0, 1, 2 and so on."""
  weights, start = {}, 0
  for name, shape in weight_shapes(_SHAPE).items():
    size = int(np.prod(shape))
    weights[name] = np.arange(start, start + size, dtype=np.float32)
    weights[name] = weights[name].reshape(shape)
    start += size
  return weights


@pytest.fixture(name='directory')
def _directory(tmp_path):
  """A directory with the model, and a vocabulary of its five tokens."""
  _save(tmp_path, gpt2.to_tensors(_SHAPE, _weights()))
  _edit_config(tmp_path, **gpt2.to_config(_SHAPE, 1))
  vocabulary = {piece: i for i, piece in enumerate(('[UNK]', '[SEP]', *'abc'))}
  model = tokenizers.models.WordPiece(vocabulary, unk_token='[UNK]')
  tokenizers.Tokenizer(model).save(str(tmp_path / 'tokenizer.json'))
  return tmp_path


def _save(directory, tensors):
  safetensors.numpy.save_file(tensors, directory / 'model.safetensors')


def _load(directory):
  return safetensors.numpy.load_file(directory / 'model.safetensors')


def _edit_config(directory, **changes):
  path = directory / 'config.json'
  config = json.loads(path.read_text()) if path.exists() else {}
  path.write_text(json.dumps(config | changes))


def _read(directory, sequence_length=None):
  shape = pretrained.read_shape(directory, '--x', sequence_length)
  pretrained.check_weights(directory)
  return shape, pretrained.read_weights(directory, shape)


def _assert_is_the_model(directory):
  shape, weights = _read(directory)
  assert shape == _SHAPE
  assert list(weights) == list(weight_shapes(_SHAPE))
  for name, weight in _weights().items():
    np.testing.assert_array_equal(weights[name], weight, err_msg=name)
    assert weights[name].dtype == np.float32


def test_names_and_weights(directory, capsys):
  tensors, weights = _load(directory), _weights()
  # 4 outside of the blocks, 12 in each of 2 blocks.
  assert len(tensors) == 4 + 2 * 12
  for name, expected in {
    'transformer.wpe.weight': weights['position_embedding'],
    'transformer.h.0.ln_1.weight': weights['block/attention_norm/scale'][0],
    'transformer.h.1.mlp.c_proj.bias': weights['block/mlp_contract/bias'][1],
  }.items():
    np.testing.assert_array_equal(tensors[name], expected)
  _assert_is_the_model(directory)
  assert capsys.readouterr().err == ''


def test_files_of_the_authors_of_gpt2(directory):
  """No prefix, masks of attention, a tied head, a config that says little."""
  tensors = {
    name.removeprefix('transformer.'): tensor
    for name, tensor in _load(directory).items()
  }
  tensors['h.0.attn.bias'] = np.ones((1, 1, 3, 3), np.uint8)
  tensors['h.1.attn.masked_bias'] = np.array(-1e4, np.float32)
  tensors['lm_head.weight'] = tensors['wte.weight']
  _save(directory, tensors)
  (directory / 'config.json').unlink()
  # The others are the defaults of transformers' GPT2Config.
  sizes = dict(n_layer=2, n_embd=4, n_head=2, vocab_size=5, n_positions=3)
  _edit_config(directory, model_type='gpt2', **sizes)
  _assert_is_the_model(directory)


@pytest.mark.parametrize('dtype', [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_numbers_of_bits(directory, dtype):
  tensors = {name: t.astype(dtype) for name, t in _load(directory).items()}
  _save(directory, tensors)
  np.testing.assert_array_equal(
    _read(directory)[1]['final_norm/bias'], tensors[_BIAS].astype(np.float32)
  )


@pytest.fixture(name='sharded')
def _sharded(directory):
  """The model in two files, each of which holds stale tensors of the other."""
  tensors = _load(directory)
  stale = {name: tensor + 1000 for name, tensor in tensors.items()}
  file_of = {}
  for i in range(2):
    names = sorted(tensors)[i::2]
    file_of |= dict.fromkeys(names, f'{i}.safetensors')
    content = stale | {name: tensors[name] for name in names}
    safetensors.numpy.save_file(content, directory / f'{i}.safetensors')
  (directory / 'model.safetensors').unlink()
  _write_index(directory, file_of)
  return directory, file_of


def _write_index(directory, file_of):
  index = {'metadata': {}, 'weight_map': file_of}
  (directory / 'model.safetensors.index.json').write_text(json.dumps(index))


def test_each_tensor_from_the_file_that_the_index_names(sharded):
  directory, file_of = sharded
  _assert_is_the_model(directory)
  # No file of that name in place of one in another directory.
  moved = {n: file.replace('1.', 'more/1.') for n, file in file_of.items()}
  _write_index(directory, moved)
  assert "'more/1.safetensors' in model.saf" in _refusal(directory)


def test_index_that_does_not_fit_the_files(sharded):
  directory, file_of = sharded
  _write_index(directory, {n: f for n, f in file_of.items() if n != _BIAS})
  with pytest.raises(UserError, match=f"'{_BIAS}' must be .* but is missing"):
    _read(directory)
  safetensors.numpy.save_file({'x': np.ones(1)}, directory / 'x.safetensors')
  _write_index(directory, file_of | {_BIAS: 'x.safetensors'})
  with pytest.raises(UserError, match=f'cannot be read .*{_BIAS}.*Copy'):
    _read(directory)


def test_first_positions(directory):
  shape, weights = _read(directory, sequence_length=2)
  assert shape.sequence_length == 2
  np.testing.assert_array_equal(
    weights['position_embedding'], _weights()['position_embedding'][:2]
  )


def test_a_padded_vocabulary_is_cut(directory, capsys):
  tensors = _load(directory)
  padding = np.zeros((3, 4), np.float32)
  tensors[_EMBEDDING] = np.concatenate([tensors[_EMBEDDING], padding])
  tensors['lm_head.weight'] = tensors[_EMBEDDING]
  _save(directory, tensors)
  _edit_config(directory, vocab_size=8)
  _assert_is_the_model(directory)
  [line] = capsys.readouterr().err.splitlines()
  assert line == (
    f"fedfish: note: '{directory}' embeds 8 tokens; only the 5 of its "
    'vocabulary are read.'
  )


def test_another_tokenizer_is_no_padding(directory):
  _edit_config(directory, vocab_size=1_030)
  assert (
    f"`--x`: the model of '{directory}' embeds 1030 tokens, but the "
    'tokenizer.json beside it has 5.'
  ) in _refusal(directory)


def _refusal(directory):
  with pytest.raises(UserError) as error:
    _read(directory)
  assert '\n' not in str(error.value)
  assert str(directory) in str(error.value)
  return str(error.value)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'model_type': 'llama'}, "`model_type` 'gpt2', found 'llama'"),
    ({'activation_function': 'relu'}, "'gelu_new', found 'relu'. Name"),
    ({'n_inner': 8}, '`n_inner` 16, found 8'),
    ({'tie_word_embeddings': False}, 'True, found False'),
    ({'n_layer': None}, "found {'n_layer': None, 'n_embd': 4,"),
    ({'n_layer': 2.0}, "found {'n_layer': 2.0, 'n_embd': 4,"),
    ({'n_layer': 0}, 'whole numbers from 1 on as n_layer, n_embd, n_head, voc'),
    ({'n_head': 3}, 'with n_embd a multiple of n_head, found'),
  ],
)
def test_configs_that_are_refused(directory, change, words):
  _edit_config(directory, **change)
  assert words in _refusal(directory)


_OTHER_HEAD = np.zeros((5, 4), np.float32)
_TOO_LARGE = np.array([0, 0, 0, 1e39])  # Above 3.4e38, the largest float32.


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (
      {_BIAS: None},
      f'{_BIAS!r} must be of floats, of shape [4], but is m',
    ),
    (
      {_BIAS: np.zeros(5, np.float32)},
      '[4], but is F32 [5]. Copy the directory',
    ),
    ({_BIAS: np.array(1, np.float32)}, 'but is F32 [].'),
    (
      {_BIAS: np.ones(4, np.int8)},
      'but is I8 [4]. Copy the directory',
    ),
    ({_EMBEDDING: np.zeros((4, 4), np.float32)}, '[5, 4], but is F32 [4, 4]'),
    ({_BIAS: np.float32([0, 0, np.nan, 0])}, '1 of its 4 are NaN, infinite or'),
    ({_BIAS: _TOO_LARGE}, f'{_BIAS!r} of F64 must hold finite float32 numbers'),
    (
      {'lm_head.weight': _OTHER_HEAD},
      "'lm_head.weight' must equal the",
    ),
    (
      {'transformer.h.2.ln_1.bias': np.zeros(4, np.float32)},
      'of a GPT-2 for language with 2 layers and no others, but also holds 1 '
      "more, such as 'transformer.h.2.ln_1.bias'",
    ),
    ({'score.weight': _OTHER_HEAD}, "such as 'score.weight'. Copy the direct"),
  ],
)
def test_tensors_that_are_refused(directory, change, words):
  tensors = _load(directory) | change
  _save(directory, {n: t for n, t in tensors.items() if t is not None})
  assert words in _refusal(directory)


def test_rotary_positions_are_refused():
  shape = dataclasses.replace(_SHAPE, position_embedding='rotary')
  with pytest.raises(UserError, match="as GPT-2 has, found 'rotary'. Export"):
    gpt2.to_config(shape, 1)


def test_weights_that_cannot_be_read(directory):
  weights = directory / 'model.safetensors'
  weights.write_bytes(b'0')
  assert 'cannot be read (' in _refusal(directory)
  weights.unlink()
  assert 'safe_serialization=True' in _refusal(directory)
  (directory / 'sub').mkdir()
  for index in (
    *('[]', '{"weight_map": []}', '{"weight_map": {"a": 1}}'),
    *(f'{{"weight_map": {{"a": "{n}"}}}}' for n in ('gone', 'sub', '..', '')),
    # JSON can hold a half of a character, a path cannot.
    r'{"weight_map": {"a": "\ud800"}}',
  ):
    (directory / 'model.safetensors.index.json').write_text(index)
    assert 'cannot be read (' in _refusal(directory), index
