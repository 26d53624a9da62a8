"""Bytes that a client's work with an image model takes, to be on the safe side.

For runs side by side (`sweeping/memory.py`). Unlike those of transformers the
copies below are counted in the code of the models, not measured: what the
gradient needs of every convolution, as if nothing were freed before the end.
"""

import math

from models import resnet_shapes
from models.image_model_config import ImageModelConfig
from tff_fedfish.optimizers import cost
from tff_fedfish.training.config import TrainConfig

Parts = dict[str, int]

# Of a convolution's output: itself, with bias or normalized, after ReLU, and
# its gradient.
_COPIES = 4


def moments_of_client(config: TrainConfig) -> dict[str, Parts]:
  """Returns what a client adds to what is resident, as part -> bytes.

  Args:
    config: The config of a run with images.

  Returns:
    Moment -> parts: of a local step, and with FedFish of its Fisher pass.
  """
  model, algorithm = config.model_shape(), config.algorithm
  weights = 4 * model.num_parameters
  num_rows = config.client_work.max_batch_rows
  num_moments = cost.of_settings(config.client_work).num_state_tensors
  fisher_pass = {
    'client weights': weights,
    'gradients': weights,
    'activations': num_rows * activation_bytes(model),
  }
  step = fisher_pass | {'client optimizer state': num_moments * weights}
  if algorithm.name != 'fed_fish':
    return {'local step': step}
  sums = {'Fisher sums': weights}
  if algorithm.fisher_estimator == 'last_epoch':
    return {'local step': step | sums}
  return {'local step': step, 'Fisher pass': fisher_pass | sums}


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
