"""Shape and sizes of the transformer; no TensorFlow, so counting is free."""

import dataclasses
import math

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
    problems = []
    for name in (*PRESETS['tiny'], 'sequence_length'):
      if getattr(self, name) < 1:
        problems.append(
          f'`{name}` must be at least 1, found {getattr(self, name)}'
        )
    if not problems and self.width % self.num_heads:
      problems.append(
        f'`width` must be a multiple of `num_heads` ({self.num_heads}), '
        f'found {self.width}'
      )
    elif not problems and self.position_embedding == 'rotary':
      if self.width // self.num_heads % 2:
        problems.append(
          'rotary positions need an even `width / num_heads`, found '
          f'{self.width // self.num_heads}'
        )
    for name, allowed in (
      ('position_embedding', ('learned', 'rotary')),
      ('compute_dtype', ('float32', 'bfloat16')),
      ('layer_loop', ('auto', 'unrolled', 'foldl')),
    ):
      if getattr(self, name) not in allowed:
        problems.append(
          f'`{name}` must be one of {", ".join(allowed)}, found '
          f'{getattr(self, name)!r}'
        )
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
  layers, width = config.num_layers, config.width
  shapes = {'token_embedding': (config.vocabulary_size, width)}
  if config.position_embedding == 'learned':
    shapes['position_embedding'] = (config.sequence_length, width)
  return shapes | {
    'block/attention_norm/scale': (layers, width),
    'block/attention_norm/bias': (layers, width),
    'block/attention_input/kernel': (layers, width, 3 * width),
    'block/attention_input/bias': (layers, 3 * width),
    'block/attention_output/kernel': (layers, width, width),
    'block/attention_output/bias': (layers, width),
    'block/mlp_norm/scale': (layers, width),
    'block/mlp_norm/bias': (layers, width),
    'block/mlp_expand/kernel': (layers, width, 4 * width),
    'block/mlp_expand/bias': (layers, 4 * width),
    'block/mlp_contract/kernel': (layers, 4 * width, width),
    'block/mlp_contract/bias': (layers, width),
    'final_norm/scale': (width,),
    'final_norm/bias': (width,),
  }


def num_parameters(config: TransformerConfig) -> int:
  """Returns the number of trainable scalars."""
  return sum(math.prod(shape) for shape in weight_shapes(config).values())


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
