"""Bytes that a client's work with an image model takes, to be on the safe side.

For runs side by side (`sweeping/memory.py`). Unlike those of transformers the
copies below are counted in the code of the models, not measured: what the
gradient needs of every convolution, as if nothing were freed before the end.
"""

import math

from models import resnet_shapes
from models.image_model_config import ImageModelConfig
from tff_fedfish.planning import held_models
from tff_fedfish.planning.held_models import Parts
from tff_fedfish.training.config import TrainConfig

# Of a convolution's output: itself, with bias or normalized, after ReLU, and
# its gradient.
_COPIES = 4


def moments_of_client(config: TrainConfig) -> dict[str, Parts]:
  """Returns what a client adds to what is resident, as part -> bytes.

  Args:
    config: The config of a run with images.

  Returns:
    Moment -> parts: of a local step, and of what the method does after them.
  """
  model, method_cost = config.model_shape(), config.method.cost(config)
  model_bytes = 4 * model.num_parameters
  # A pass over single rows takes less, but is counted as one over batches.
  of_batch = {
    'gradients': model_bytes,
    'activations': held_models.rows_at_a_time(config) * activation_bytes(model),
  }
  step = held_models.in_training(config, model_bytes) | of_batch
  after = held_models.after_training(config, model_bytes)
  if method_cost.pass_after_training != 'none':
    return {'local step': step, 'pass after training': after | of_batch}
  if method_cost.models_after_training:
    return {'local step': step, 'after training': after}
  return {'local step': step}


def activation_bytes(model: ImageModelConfig) -> int:
  """Returns what an image's forward and backward pass keep at most.

  Args:
    model: The model's shape.
  """
  count = _resnet_outputs if model.name == 'resnet18' else _emnist_cnn_outputs
  return 4 * _COPIES * count(model)


def _emnist_cnn_outputs(model):
  """Returns how many values the two valid convolutions have."""
  height, width, _ = model.image_shape
  shapes = model.weight_shapes()
  return sum(
    (height - 2 * depth) * (width - 2 * depth) * shapes[f'conv_{depth}/bias'][0]
    for depth in (1, 2)
  )


def _resnet_outputs(model):
  """Returns how many values the stem, blocks and shortcuts have."""
  height, width, _ = model.image_shape
  blocks = list(resnet_shapes.blocks())
  total = height * width * blocks[0].channels_in
  for block in blocks:
    height = math.ceil(height / block.stride)
    width = math.ceil(width / block.stride)
    total += (2 + block.projects) * height * width * block.channels
  return total
