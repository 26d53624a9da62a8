"""Sizes and weights under GPT-2's names, and back."""

import dataclasses

import numpy as np
import pytest

from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import gpt2

_SHAPE = TransformerConfig(
  num_layers=2, width=4, num_heads=2, vocabulary_size=5, sequence_length=3
)


def _weights():
  """Weights that are all different: 0, 1, 2 and so on."""
  weights, start = {}, 0
  for name, shape in weight_shapes(_SHAPE).items():
    size = int(np.prod(shape))
    weights[name] = np.arange(start, start + size, dtype=np.float32)
    weights[name] = weights[name].reshape(shape)
    start += size
  return weights


def _to_weights(shape, tensors):
  found = gpt2.find_tensors(shape, tensors, 'model')
  return gpt2.to_weights(shape, found, tensors.get)


def test_names_of_tensors():
  weights = _weights()
  tensors = gpt2.to_tensors(_SHAPE, weights)
  # 4 outside of the blocks, 12 in each of 2 blocks.
  assert len(tensors) == 4 + 2 * 12
  for name, expected in {
    'transformer.wte.weight': weights['token_embedding'],
    'transformer.wpe.weight': weights['position_embedding'],
    'transformer.ln_f.bias': weights['final_norm/bias'],
    'transformer.h.0.ln_1.weight': weights['block/attention_norm/scale'][0],
    'transformer.h.1.attn.c_attn.weight': weights[
      'block/attention_input/kernel'
    ][1],
    'transformer.h.1.mlp.c_proj.bias': weights['block/mlp_contract/bias'][1],
  }.items():
    np.testing.assert_array_equal(tensors[name], expected)


@pytest.mark.parametrize('prefix', ['transformer.', ''])
def test_weights_come_back_bit_for_bit(prefix):
  weights = _weights()
  tensors = {
    prefix + name.removeprefix('transformer.'): tensor
    for name, tensor in gpt2.to_tensors(_SHAPE, weights).items()
  }
  found = _to_weights(_SHAPE, tensors)
  assert list(found) == list(weights)
  for name, weight in weights.items():
    np.testing.assert_array_equal(found[name], weight)
    assert found[name].dtype == np.float32


def test_first_positions_are_taken():
  tensors = gpt2.to_tensors(_SHAPE, _weights())
  shorter = dataclasses.replace(_SHAPE, sequence_length=2)
  found = _to_weights(shorter, tensors)
  np.testing.assert_array_equal(
    found['position_embedding'], tensors['transformer.wpe.weight'][:2]
  )


def test_sizes_come_back():
  config = gpt2.to_config(_SHAPE, 4)
  assert config['n_layer'] == 2
  assert config['eos_token_id'] == 4
  assert gpt2.to_shape(config, 'config.json') == _SHAPE


def test_a_config_that_says_little_is_of_gpt2():
  # The defaults of transformers' GPT2Config.
  config = dict(
    model_type='gpt2',
    n_layer=2,
    n_embd=4,
    n_head=2,
    vocab_size=5,
    n_positions=3,
  )
  assert gpt2.to_shape(config, 'config.json') == _SHAPE


@pytest.mark.parametrize('classes', [None, [], ['GPT2Model']])
def test_models_of_language(classes):
  config = gpt2.to_config(_SHAPE, 4) | {'architectures': classes}
  assert gpt2.to_shape(config, 'config.json') == _SHAPE


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'model_type': 'llama'}, "`model_type` 'gpt2', found 'llama'"),
    (
      {'activation_function': 'relu'},
      "`activation_function` 'gelu_new', found 'relu'",
    ),
    ({'layer_norm_epsilon': 1e-6}, '`layer_norm_epsilon` 1e-05, found 1e-06'),
    ({'n_inner': 8}, '`n_inner` 16, found 8'),
    ({'tie_word_embeddings': False}, 'True, found False'),
    ({'n_layer': None}, '`n_layer` as a whole number from 1 on, found None'),
    ({'n_layer': 2.5}, 'found 2.5'),
    ({'n_head': 3}, '`n_embd` as a multiple of `n_head` (3), found 4. Copy'),
    (
      {'architectures': ['GPT2ForSequenceClassification']},
      'GPT2Model or GPT2DoubleHeadsModel, found '
      "['GPT2ForSequenceClassification']. Name",
    ),
    ({'architectures': 'GPT2Model'}, "found 'GPT2Model'"),
  ],
)
def test_configs_that_are_refused(change, words):
  config = gpt2.to_config(_SHAPE, 4) | change
  with pytest.raises(UserError) as error:
    gpt2.to_shape(config, 'd/config.json')
  assert words in str(error.value)
  assert "'d/config.json'" in str(error.value)


def test_rotary_positions_are_refused():
  shape = dataclasses.replace(_SHAPE, position_embedding='rotary')
  with pytest.raises(UserError, match="'learned', .* found 'rotary'. Export"):
    gpt2.to_config(shape, 0)


def test_tensors_that_are_refused():
  tensors = gpt2.to_tensors(_SHAPE, _weights())
  scalar = tensors | {'transformer.wpe.weight': np.float32(1)}
  with pytest.raises(UserError, match=r'shape \[3, 4\], but has \[\]'):
    _to_weights(_SHAPE, scalar)
  # Two numbers of 4 bits in each.
  packed = tensors | {'transformer.wte.weight': np.zeros((10, 1), np.uint8)}
  with pytest.raises(
    UserError,
    match='float16 or bfloat16, but is of uint8. Load the model in float32',
  ):
    _to_weights(_SHAPE, packed)
  wrong = tensors | {'transformer.h.1.ln_2.bias': np.zeros(3)}
  with pytest.raises(UserError, match=r'shape \[4\], but has \[3\]'):
    _to_weights(_SHAPE, wrong)
  del tensors['transformer.h.1.ln_2.bias']
  with pytest.raises(
    UserError, match=r"tensor 'transformer.h.1.ln_2.bias', but"
  ):
    _to_weights(_SHAPE, tensors)


def test_the_first_missing_layer_ends_the_search():
  tensors = gpt2.to_tensors(_SHAPE, _weights())
  # Their names would take 60 GB.
  deep = dataclasses.replace(_SHAPE, num_layers=10**9)
  with pytest.raises(UserError, match="tensor 'transformer.h.2.ln_1.weight'"):
    gpt2.find_tensors(deep, tensors, 'model')
