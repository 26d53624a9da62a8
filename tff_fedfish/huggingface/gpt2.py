"""Sizes and weights of GPT-2 as `transformers` names them, and as we do.

Our transformer with learned positions is that of Radford et al. (2019), so that
the weights are the same numbers under other names: there each block has tensors
of its own, here those of all blocks are stacked along their first axis.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.errors import UserError

MODEL_TYPE = 'gpt2'
# Classes whose weights are, or begin with, those of a language model.
_ARCHITECTURES = ('GPT2LMHeadModel', 'GPT2Model', 'GPT2DoubleHeadsModel')
_DTYPES = ('float64', 'float32', 'float16', 'bfloat16')
_PREFIX = 'transformer.'
# Outside of the blocks.
_NAMES = {
  'token_embedding': 'wte.weight',
  'position_embedding': 'wpe.weight',
  'final_norm/scale': 'ln_f.weight',
  'final_norm/bias': 'ln_f.bias',
}
# In them, behind 'h.NUMBER.'.
_BLOCK_NAMES = {
  'block/attention_norm/scale': 'ln_1.weight',
  'block/attention_norm/bias': 'ln_1.bias',
  'block/attention_input/kernel': 'attn.c_attn.weight',
  'block/attention_input/bias': 'attn.c_attn.bias',
  'block/attention_output/kernel': 'attn.c_proj.weight',
  'block/attention_output/bias': 'attn.c_proj.bias',
  'block/mlp_norm/scale': 'ln_2.weight',
  'block/mlp_norm/bias': 'ln_2.bias',
  'block/mlp_expand/kernel': 'mlp.c_fc.weight',
  'block/mlp_expand/bias': 'mlp.c_fc.bias',
  'block/mlp_contract/kernel': 'mlp.c_proj.weight',
  'block/mlp_contract/bias': 'mlp.c_proj.bias',
}
_SIZES = {
  'num_layers': 'n_layer',
  'width': 'n_embd',
  'num_heads': 'n_head',
  'vocabulary_size': 'vocab_size',
  'sequence_length': 'n_positions',
}
# What the transformer computes, and GPT-2 where its config says nothing.
_FIXED = {
  'activation_function': 'gelu_new',
  'layer_norm_epsilon': 1e-5,
  'scale_attn_weights': True,
  'scale_attn_by_inverse_layer_idx': False,
  'tie_word_embeddings': True,
}


def to_config(shape: TransformerConfig, end_of_text_id: int) -> dict[str, Any]:
  """Returns the contents of `config.json` of a transformer.

  Raises:
    UserError: If its positions are rotary, which GPT-2 does not have.
  """
  if shape.position_embedding != 'learned':
    raise UserError(
      "`--format` 'huggingface' needs `model.position_embedding` 'learned', as "
      f'GPT-2 has, found {shape.position_embedding!r}. Export it as '
      'safetensors.'
    )
  return {
    'architectures': [_ARCHITECTURES[0]],
    'model_type': MODEL_TYPE,
    **{theirs: getattr(shape, ours) for ours, theirs in _SIZES.items()},
    'n_inner': 4 * shape.width,
    **_FIXED,
    # It was trained without dropout.
    'attn_pdrop': 0.0,
    'embd_pdrop': 0.0,
    'resid_pdrop': 0.0,
    'bos_token_id': end_of_text_id,
    'eos_token_id': end_of_text_id,
    'torch_dtype': 'float32',
  }


def to_shape(config: Mapping[str, Any], source: str) -> TransformerConfig:
  """Returns the shape of the model that a `config.json` describes.

  Args:
    config: The contents of the file.
    source: Its name, for errors.

  Raises:
    UserError: If it is not of GPT-2's arrangement.
  """
  wanted = {'model_type': MODEL_TYPE, **_FIXED}
  found = {'model_type': None, **_FIXED, **config}
  width = config.get('n_embd')
  if config.get('n_inner') is not None and type(width) is int:
    wanted['n_inner'] = 4 * width
  for name, value in wanted.items():
    if found[name] != value:
      raise UserError(
        f"{source!r} must be of GPT-2's arrangement, with `{name}` {value!r}, "
        f'found {found[name]!r}. Name a directory of such a model.'
      )
  classes = config.get('architectures')
  if classes and classes not in [[name] for name in _ARCHITECTURES]:
    raise UserError(
      f'{source!r} must be of a language model, with `architectures` '
      f'{" or ".join(_ARCHITECTURES)}, found {classes!r}. Name a directory of '
      'such a model.'
    )
  sizes = {ours: config.get(theirs) for ours, theirs in _SIZES.items()}
  for ours, theirs in _SIZES.items():
    if type(sizes[ours]) is not int or sizes[ours] < 1:
      raise UserError(
        f'{source!r} must state `{theirs}` as a whole number from 1 on, found '
        f'{sizes[ours]!r}. Copy the whole directory again.'
      )
  if sizes['width'] % sizes['num_heads']:
    raise UserError(
      f'{source!r} must state `n_embd` as a multiple of `n_head` '
      f'({sizes["num_heads"]}), found {sizes["width"]}. Copy the whole '
      'directory again.'
    )
  return TransformerConfig(**sizes)


def to_tensors(
  shape: TransformerConfig, weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns the weights by their names in `transformers`.

  Args:
    shape: The model's shape.
    weights: By the names of `weight_shapes`.
  """
  tensors = {_PREFIX + _NAMES[name]: weights[name] for name in _NAMES}
  for ours, theirs in _BLOCK_NAMES.items():
    for layer in range(shape.num_layers):
      tensors[f'{_PREFIX}h.{layer}.{theirs}'] = weights[ours][layer]
  return tensors


def find_tensors(
  shape: TransformerConfig,
  tensors: Mapping[str, Any],
  source: str,
) -> dict[str, list[str]]:
  """Returns the names of the tensors that each weight is made of.

  Args:
    shape: The model's shape.
    tensors: All tensors there are, by name, each with `shape` and `dtype` or
      its name. The names are without the model's prefix in the files of GPT-2's
      authors.
    source: Where they come from, for errors.

  Returns:
    Weight -> names, those of the blocks in their order, in the order of
    `weight_shapes`.

  Raises:
    UserError: If a tensor is missing, or of another shape or type. More
      positions than the model has are no error.
  """
  prefix = _PREFIX if _PREFIX + _NAMES['token_embedding'] in tensors else ''
  found = {}
  for ours, wanted in weight_shapes(shape).items():
    names = [prefix + _NAMES.get(ours, '')]
    if ours in _BLOCK_NAMES:
      layers, *wanted = wanted
      form = f'{prefix}h.{{}}.{_BLOCK_NAMES[ours]}'
      # One by one, up to the first that is missing.
      names = map(form.format, range(layers))
    found[ours] = []
    for name in names:
      if name not in tensors:
        raise UserError(
          f'{source!r} must hold the tensor {name!r}, but does not. Copy the '
          'whole directory again.'
        )
      dtype, has = str(tensors[name].dtype), list(tensors[name].shape)
      # First: packed numbers have another shape, too.
      if dtype not in _DTYPES:
        raise UserError(
          f'{source!r}: tensor {name!r} must be of {" or ".join(_DTYPES)}, but '
          f'is of {dtype}. Load the model in float32, without quantization, '
          'and save it again.'
        )
      if ours == 'position_embedding' and has:
        has[0] = min(has[0], shape.sequence_length)
      if has != list(wanted):
        raise UserError(
          f'{source!r}: tensor {name!r} must have shape {list(wanted)}, but '
          f'has {has}. Copy the whole directory again.'
        )
      found[ours].append(name)
  return found


def to_weights(
  shape: TransformerConfig,
  tensors: Mapping[str, Sequence[str]],
  read: Callable[[str], np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns the weights by our names, float32, in the order of the model.

  Args:
    shape: The model's shape. Of the positions, the first ones are taken.
    tensors: As `find_tensors` returns them.
    read: Returns a tensor by its name.
  """
  weights = {}
  for ours, wanted in weight_shapes(shape).items():
    # Filled one by one, so that no tensor is twice in memory.
    weights[ours] = np.empty(wanted, np.float32)
    rows = weights[ours] if ours in _BLOCK_NAMES else weights[ours][np.newaxis]
    for row, name in zip(rows, tensors[ours], strict=True):
      row[...] = read(name)[: len(row)]
  return weights
