"""Directories of transformers to start from, and words of what is said."""

import json

import numpy as np
import safetensors.numpy
import small_runs
import tokenizers
from refused_inputs import Case

from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.huggingface import gpt2

_SHAPE = TransformerConfig(
  num_layers=1, width=4, num_heads=2, vocabulary_size=3, sequence_length=8
)
_VOCABULARY = {'[UNK]': 0, '[SEP]': 1, 'a': 2}


def _write(directory):
  """Writes a model whose weights are 0, and its vocabulary."""
  directory.mkdir()
  shapes = weight_shapes(_SHAPE)
  weights = {name: np.zeros(s, np.float32) for name, s in shapes.items()}
  tensors = gpt2.to_tensors(_SHAPE, weights)
  safetensors.numpy.save_file(tensors, directory / 'model.safetensors')
  config = gpt2.to_config(_SHAPE, 1)
  (directory / 'config.json').write_text(json.dumps(config))
  model = tokenizers.models.WordPiece(_VOCABULARY, unk_token='[UNK]')
  tokenizers.Tokenizer(model).save(str(directory / 'tokenizer.json'))


def _case(words, change=lambda directory: None, **settings):
  """Returns the case of a new run that begins with a changed directory."""

  def prepare(place):
    directory = place.directory / 'start'
    _write(directory)
    change(directory)
    place.vocabulary = directory
    if not (directory / 'tokenizer.json').is_file():
      place.vocabulary = place.directory / 'vocabulary'
      _write(place.vocabulary)
    given = small_runs.FROM_DIRECTORY | {
      'training__start_from': directory,
      # With three pieces hardly any text is left to score.
      'evaluation__num_clients': 0,
    }
    return place.arguments(**given | settings)

  return Case(words, prepare)


def _edit_tensors(**changes):
  def edit(directory):
    path = directory / 'model.safetensors'
    tensors = safetensors.numpy.load_file(path) | changes
    safetensors.numpy.save_file(tensors, path)

  return edit


def _without(name):
  return lambda directory: (directory / name).unlink()


# tests/huggingface has all that a directory is refused for.
CASES = (
  _case(
    "`config.training.start_from` is required with preset 'from_directory'",
    training__start_from=None,
  ),
  _case(
    'must be a directory with a config.json of transformers',
    _without('config.json'),
  ),
  _case(
    '`--config.data.sequence_length` is 9, but the model of',
    data__sequence_length=9,
  ),
  _case(
    'must hold finite float32 numbers, but 1 of its 4 are NaN, infinite or ',
    _edit_tensors(
      **{'transformer.ln_f.bias': np.array([0, 0, np.nan, 0], np.float32)}
    ),
  ),
  _case(
    "tensor 'lm_head.weight' must equal the tokens' embedding",
    _edit_tensors(**{'lm_head.weight': np.ones((3, 4), np.float32)}),
  ),
  _case(
    "Set `--config.model.preset` to 'from_directory', no sizes, and ",
    model__width=6,
  ),
  _case('must hold model.safetensors or ', _without('model.safetensors')),
  _case(
    "must hold tokenizer.json, but does not. Save the model's AutoTokenizer",
    # The vocabulary lies elsewhere.
    _without('tokenizer.json'),
  ),
)
