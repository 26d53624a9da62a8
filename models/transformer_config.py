"""Shape and sizes of the transformer; no TensorFlow, so counting is free."""

import dataclasses

PRESETS: dict[str, dict[str, int]] = {
  'tiny': dict(num_layers=4, width=128, num_heads=4, vocabulary_size=2_048),
  'small': dict(num_layers=6, width=384, num_heads=6, vocabulary_size=8_192),
  '350m': dict(
    num_layers=24, width=1_024, num_heads=16, vocabulary_size=32_000
  ),
  '1.5b': dict(
    num_layers=48, width=1_600, num_heads=25, vocabulary_size=32_000
  ),
}
"""Named sizes; `350m` and `1.5b` are those that Dhawan et al. (2024), FedFish,
pretrain."""
FROM_DIRECTORY = 'from_directory'
"""Preset whose sizes are those of the model that a run starts from."""

_CHOICES = {
  'position_embedding': ('learned', 'rotary'),
  'compute_dtype': ('float32', 'bfloat16'),
  'layer_loop': ('auto', 'unrolled', 'foldl'),
}

# Queries per block of attention: big enough for efficient products, small
# enough that a block of scores stays small beside activations at 1,024 tokens.
_QUERY_BLOCK_LENGTH = 256
LOGITS_TENSORS = ('token_embedding',)
"""Tensors that make the logits. The embedding is tied: it embeds the input,
too."""
MAX_LOGITS_BYTES = 64 * 2**20
"""Logits of one sequence above this are formed in chunks."""

# Above this, unrolled layers take longer to compile than a loop costs to run.
_MAX_UNROLLED_LAYERS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
  """Shape of a transformer, and how it computes."""

  num_layers: int
  """Blocks of attention and MLP, >= 1."""
  width: int
  """Size of the residual stream; a multiple of `num_heads`."""
  num_heads: int
  """Attention heads, >= 1. With rotary positions, width / heads is even."""
  vocabulary_size: int
  """Token ids run from 0 to vocabulary_size - 1."""
  sequence_length: int
  """Positions the model sees at most. Unit: tokens."""
  position_embedding: str = 'learned'
  """'learned' (one vector a position) or 'rotary' (no weights)."""
  compute_dtype: str = 'float32'
  """'float32' or 'bfloat16' matrix products; weights stay float32."""
  layer_loop: str = 'auto'
  """'unrolled' (fastest), 'foldl' (compiles fast at any depth), 'auto'."""

  def __post_init__(self):
    problems = [
      f'`{name}` must be at least 1, found {getattr(self, name)}'
      for name in (*PRESETS['tiny'], 'sequence_length')
      if getattr(self, name) < 1
    ]
    if not problems and self.width % self.num_heads:
      problems.append(
        f'`width` must be a multiple of `num_heads` ({self.num_heads}), '
        f'found {self.width}'
      )
    is_rotary = self.position_embedding == 'rotary'
    if not problems and is_rotary and self.head_width % 2:
      problems.append(
        'rotary positions need an even `width / num_heads`, found '
        f'{self.head_width}'
      )
    problems += [
      f'`{name}` must be one of {", ".join(allowed)}, found '
      f'{getattr(self, name)!r}'
      for name, allowed in _CHOICES.items()
      if getattr(self, name) not in allowed
    ]
    if problems:
      raise ValueError('Invalid transformer: ' + '; '.join(problems) + '.')

  @property
  def head_width(self) -> int:
    """Size of one attention head."""
    return self.width // self.num_heads

  @property
  def unrolls_layers(self) -> bool:
    """Whether the layers are written out instead of looped over."""
    if self.layer_loop == 'auto':
      return self.num_layers <= _MAX_UNROLLED_LAYERS
    return self.layer_loop == 'unrolled'


def weight_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight, in the order of `weights`.

  Weights of the blocks are stacked along a first axis of size num_layers: the
  number of tensors does not grow with the depth. The names begin with `block/`.
  """
  width = config.width
  shapes = {'token_embedding': (config.vocabulary_size, width)}
  if config.position_embedding == 'learned':
    shapes['position_embedding'] = (config.sequence_length, width)
  of_block = {
    'attention_norm/scale': (width,),
    'attention_norm/bias': (width,),
    'attention_input/kernel': (width, 3 * width),
    'attention_input/bias': (3 * width,),
    'attention_output/kernel': (width, width),
    'attention_output/bias': (width,),
    'mlp_norm/scale': (width,),
    'mlp_norm/bias': (width,),
    'mlp_expand/kernel': (width, 4 * width),
    'mlp_expand/bias': (4 * width,),
    'mlp_contract/kernel': (4 * width, width),
    'mlp_contract/bias': (width,),
  }
  for name, sizes in of_block.items():
    shapes[f'block/{name}'] = (config.num_layers, *sizes)
  return shapes | {'final_norm/scale': (width,), 'final_norm/bias': (width,)}


def query_blocks(length: int) -> list[tuple[int, int]]:
  """Returns (start, end) of each block of attention's queries."""
  return [
    (start, min(start + _QUERY_BLOCK_LENGTH, length))
    for start in range(0, length, _QUERY_BLOCK_LENGTH)
  ]


def logits_chunk_length(
  sequence_length: int, vocabulary_size: int
) -> int | None:
  """Returns the tokens per chunk of logits; None: they are formed at once."""
  bytes_per_token = 4 * vocabulary_size
  if sequence_length * bytes_per_token <= MAX_LOGITS_BYTES:
    return None
  return max(1, MAX_LOGITS_BYTES // bytes_per_token)
