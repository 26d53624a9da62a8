"""A directory that transformers reads, as a run of no rounds."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from models.transformer_config import FROM_DIRECTORY, PRESETS
from tff_fedfish import files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.files import ConfigValues
from tff_fedfish.huggingface import pretrained
from tff_fedfish.methods import registry
from tff_fedfish.run import checkpoint_writer, run_directory, run_inputs

LEARNING_RATE = 0.1
"""Client learning rate of such a run, which it has no config to take from."""


@contextlib.contextmanager
def opened(
  directory: str | os.PathLike, data: str | os.PathLike
) -> Iterator[pathlib.Path]:
  """Yields a temporary run whose checkpoint of round 0 holds a model.

  Args:
    directory: As `pretrained.is_pretrained` says.
    data: The corpus that the config is to name.

  Raises:
    UserError: If the model is of another arrangement than GPT-2's, has no
      vocabulary of its size, or a file is damaged.
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
  config, _ = config_loading.build_config(
    ConfigValues(str(directory), sections)
  )
  (vocabulary, *_) = pretrained.vocabularies(directory, '--checkpoint')
  tokenizer = run_inputs.open_tokenizer(config, vocabulary)
  weights = pretrained.read_weights(directory, shape)
  # Late: the errors above must not wait for TFF.
  from tff_fedfish.run import learning_setup

  with tempfile.TemporaryDirectory(prefix='fedfish_') as temporary:
    run = pathlib.Path(temporary)
    values = config_loading.to_json_dict(config)
    files.write_json(run / run_directory.CONFIG_NAME, values)
    tokenizer.save(run / run_directory.VOCABULARY_NAME)
    contents = run_directory.checkpoint_contents(config, None, tokenizer)
    checkpoint_writer.save_checkpoint(
      run / run_directory.CHECKPOINTS_NAME,
      0,
      learning_setup.trainable_tensors(tuple(weights.values())),
      contents,
    )
    # Not twice in memory.
    del weights
    yield run
