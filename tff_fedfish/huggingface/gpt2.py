"""Sizes and weights of GPT-2 as `transformers` names them, and as we do.

Our transformer with learned positions is that of Radford et al. (2019), so that
the weights are the same numbers under other names: there each block has tensors
of its own, here those of all blocks are stacked along their first axis.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.errors import UserError

MODEL_TYPE = 'gpt2'
HEAD = 'lm_head.weight'
"""A copy of the token embedding, which some files hold."""
_CLASS = 'GPT2LMHeadModel'
_REMEDY = (
  f'Copy the directory again, or load the model as {_CLASS} in float32 and '
  'save it again.'
)
# As safetensors names them.
_DTYPES = ('F64', 'F32', 'F16', 'BF16')
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
# Constants of causal attention, which earlier versions of transformers saved.
_MASKS = ('.attn.bias', '.attn.masked_bias')
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
    'architectures': [_CLASS],
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
  """Returns the shape of the model that a `config.json`, `source`, describes.

  Raises:
    UserError: If it is not of GPT-2's arrangement.
  """
  width = config.get('n_embd')
  wanted = {'model_type': MODEL_TYPE, **_FIXED}
  given = {'model_type': None, **_FIXED, **config}
  if config.get('n_inner') is not None and type(width) is int:
    wanted['n_inner'] = 4 * width
  for name, value in wanted.items():
    if given[name] != value:
      raise UserError(
        f"{source!r} must be of GPT-2's arrangement, with `{name}` {value!r}, "
        f'found {given[name]!r}. Name a directory of such a model.'
      )
  sizes = {ours: config.get(theirs) for ours, theirs in _SIZES.items()}
  try:
    if {*map(type, sizes.values())} != {int}:
      raise ValueError('not all are whole numbers')
    return TransformerConfig(**sizes)
  except ValueError as error:
    found = {theirs: config.get(theirs) for theirs in _SIZES.values()}
    raise UserError(
      f'{source!r} must have whole numbers from 1 on as '
      f'{", ".join(_SIZES.values())}, with n_embd a multiple of n_head, found '
      f'{found}. Copy the whole directory again.'
    ) from error


def to_tensors(
  shape: TransformerConfig, weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns the weights by their names in `transformers`."""
  tensors = {}
  for ours, weight in weights.items():
    rows = weight if ours in _BLOCK_NAMES else [weight]
    for name, row in zip(_their_names(shape, ours), rows, strict=True):
      tensors[_PREFIX + name] = row
  return tensors


def find_tensors(
  shape: TransformerConfig, tensors: Mapping[str, Any], source: str
) -> dict[str, list[Any]]:
  """Returns the tensors that each weight is made of.

  Args:
    shape: The shape of the whole model.
    tensors: All tensors of a directory by name, each with `shape` and `dtype`.
      The names are without the model's prefix in the files of GPT-2's authors.
    source: Where they come from, for errors.

  Returns:
    Weight -> its tensors, those of blocks in order.

  Raises:
    UserError: If a tensor is missing, or of another shape or type; or if there
      is a tensor that the model does not use, such as a layer too many.
  """
  prefix = _PREFIX if _PREFIX + _NAMES['token_embedding'] in tensors else ''
  found = {}
  for ours, wanted in weight_shapes(shape).items():
    wanted = list(wanted[1:] if ours in _BLOCK_NAMES else wanted)
    names = [prefix + name for name in _their_names(shape, ours)]
    found[ours] = {name: tensors.get(name) for name in names}
    for name, tensor in found[ours].items():
      is_there = 'is missing'
      if tensor is not None:
        is_there = f'is {tensor.dtype} {list(tensor.shape)}'
      if is_there not in [f'is {dtype} {wanted}' for dtype in _DTYPES]:
        raise UserError(
          f'{source!r}: tensor {name!r} must be of floats, of shape {wanted}, '
          f'but {is_there}. {_REMEDY}'
        )
  used = {HEAD}.union(*found.values())
  unused = [n for n in tensors if n not in used and not n.endswith(_MASKS)]
  if unused:
    raise UserError(
      f'{source!r} must hold the tensors of a GPT-2 for language with '
      f'{shape.num_layers} layers and no others, but also holds {len(unused)} '
      f'more, such as {min(unused)!r}. {_REMEDY}'
    )
  return {ours: [*of_weight.values()] for ours, of_weight in found.items()}


def to_weights(
  shape: TransformerConfig, tensors: Mapping[str, Sequence[Any]]
) -> dict[str, np.ndarray]:
  """Returns the weights by our names, float32, in the order of the model.

  Args:
    shape: The model's shape. Of the embeddings, the first rows are taken.
    tensors: As `find_tensors` returns them; `read()` returns their values.
  """
  weights = {}
  for ours, wanted in weight_shapes(shape).items():
    # Filled one by one, so that no tensor is twice in memory.
    weights[ours] = np.empty(wanted, np.float32)
    rows = weights[ours] if ours in _BLOCK_NAMES else weights[ours][np.newaxis]
    for row, tensor in zip(rows, tensors[ours], strict=True):
      row[...] = tensor.read()[: len(row)]
  return weights


def _their_names(shape: TransformerConfig, ours: str) -> Iterable[str]:
  """Returns the names, without prefix, of the tensors of a weight."""
  if ours in _BLOCK_NAMES:
    return (f'h.{i}.{_BLOCK_NAMES[ours]}' for i in range(shape.num_layers))
  return (_NAMES[ours],)
