"""A directory that transformers reads, as the checkpoint of a run's round 0."""

import os
import pathlib

from models.transformer_config import FROM_DIRECTORY, PRESETS
from tff_fedfish.config import given
from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.huggingface import pretrained
from tff_fedfish.methods import registry
from tff_fedfish.run import client_data, run_directory
from tff_fedfish.run.checkpoints import Checkpoint

LEARNING_RATE = 0.1
"""Client learning rate of such a run, which it has no config to take from."""


def config_of(
  directory: str | os.PathLike, data: str | os.PathLike
) -> TrainConfig:
  """Returns the config of a run that begins with a model.

  Args:
    directory: As `pretrained.is_pretrained` says.
    data: The corpus that the config is to name.

  Raises:
    UserError: If the model is of another arrangement than GPT-2's.
  """
  shape = pretrained.read_shape(directory, '--checkpoint')
  sizes = {name: getattr(shape, name) for name in PRESETS['tiny']}
  sections = {
    'algorithm': {'name': registry.BASELINE.name},
    'client_work': {'num_local_epochs': 1, 'learning_rate': LEARNING_RATE},
    'server': {'learning_rate': 1.0},
    'model': {'preset': FROM_DIRECTORY, **sizes},
    'data': {
      'directory': str(data),
      'vocabulary': str(directory),
      'sequence_length': shape.sequence_length,
    },
    'cohorts': {'cohort_size': 1},
    'training': {'num_rounds': 1, 'start_from': str(directory)},
    'evaluation': {'every_num_rounds': 0, 'num_clients': 0},
    'checkpoints': {'every_num_rounds': 0},
  }
  values = given.from_sections(sections, str(directory))
  return config_loading.build_config(values)[0]


def open_checkpoint(
  config: TrainConfig, directory: str | os.PathLike
) -> tuple[Checkpoint, Tokenizer]:
  """Reads the model of a directory, given its `config_of`, and its vocabulary.

  Returns:
    The checkpoint, whose tensors are the weights in the order of
    `weight_shapes` and by its names, and the vocabulary.

  Raises:
    UserError: If there is no vocabulary of the model's size, or a file is
      missing or damaged.
  """
  (vocabulary, *_) = pretrained.vocabularies(directory, '--checkpoint')
  tokenizer = client_data.open_tokenizer(config, vocabulary)
  checkpoint = Checkpoint(
    round_num=0,
    tensors=pretrained.read_weights(directory, config.model_shape()),
    contents=run_directory.checkpoint_contents(config, None, tokenizer),
    path=pathlib.Path(directory).resolve(),
  )
  return checkpoint, tokenizer
