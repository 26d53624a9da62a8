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


def _edit(name, **changes):
  def edit(directory):
    path = directory / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

  return edit


def _edit_vocabulary(vocabulary):
  def edit(directory):
    path = directory / 'tokenizer.json'
    value = json.loads(path.read_text())
    value['model']['vocab'] = vocabulary
    path.write_text(json.dumps(value))

  return edit


def _only_decode_bytes(directory):
  _edit_vocabulary({'b': 0, '[SEP]': 1, 'a': 2})(directory)
  decoder = {'type': 'ByteLevel', 'add_prefix_space': True}
  decoder |= {'trim_offsets': True, 'use_regex': True}
  _edit('tokenizer.json', decoder=decoder)(directory)


def _edit_tensors(**changes):
  def edit(directory):
    path = directory / 'model.safetensors'
    tensors = safetensors.numpy.load_file(path) | changes
    kept = {name: t for name, t in tensors.items() if t is not None}
    safetensors.numpy.save_file(kept, path)

  return edit


def _without(*names):
  def remove(directory):
    for name in names:
      (directory / name).unlink()

  return remove


def _with_index(text):
  def write(directory):
    _without('model.safetensors')(directory)
    (directory / 'model.safetensors.index.json').write_text(text)

  return write


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
    "must be of GPT-2's arrangement, with `model_type` 'gpt2', found 'llama'",
    _edit('config.json', model_type='llama'),
  ),
  _case(
    'must state `n_layer` as a whole number from 1 on, found 0',
    _edit('config.json', n_layer=0),
  ),
  _case(
    'must state `n_embd` as a multiple of `n_head` (3), found 4',
    _edit('config.json', n_head=3),
  ),
  _case(
    "must hold the tensor 'transformer.ln_f.bias', but does not",
    _edit_tensors(**{'transformer.ln_f.bias': None}),
  ),
  _case(
    "tensor 'transformer.ln_f.bias' must have shape [4], but has [5]",
    _edit_tensors(**{'transformer.ln_f.bias': np.zeros(5, np.float32)}),
  ),
  _case(
    'The weights in ',
    lambda directory: (directory / 'model.safetensors').write_bytes(b'0'),
  ),
  _case(
    'must be of a language model, with `architectures` GPT2LMHeadModel or',
    _edit('config.json', architectures=['GPT2ForTokenClassification']),
  ),
  _case(
    "tensor 'transformer.ln_f.bias' must be of float64 or ",
    _edit_tensors(**{'transformer.ln_f.bias': np.zeros(4, np.int8)}),
  ),
  _case(
    'must hold finite float32 numbers, but 1 of its 4 are NaN, infinite or ',
    _edit_tensors(
      **{'transformer.ln_f.bias': np.array([0, 0, np.nan, 0], np.float32)}
    ),
  ),
  _case(
    "Set `--config.model.preset` to 'from_directory', no sizes, and ",
    model__width=6,
  ),
  _case('must hold model.safetensors or ', _without('model.safetensors')),
  _case('must name the files of the weights, but', _with_index('{}')),
  _case(
    "names 'x.safetensors', which is no file beside it. Copy the whole ",
    _with_index('{"weight_map": {"a": "x.safetensors"}}'),
  ),
  _case(
    "must hold tokenizer.json, but does not. Save the model's AutoTokenizer",
    # The vocabulary lies elsewhere.
    _without('tokenizer.json'),
  ),
  _case(
    'must be a tokenizer.json, but cannot be loaded as one',
    _edit('tokenizer.json', model={'type': 'Magic'}),
  ),
  _case(
    'must have the token ids 0 to their number less 1, but has 3 up to 7',
    _edit_vocabulary(_VOCABULARY | {'a': 7}),
  ),
  _case(
    'must have the piece that ends a text, <|endoftext|> or ',
    _edit_vocabulary({'[UNK]': 0, 'b': 1, 'a': 2}),
  ),
  _case(
    "tokenizer_config.json' must hold a JSON object with a piece",
    lambda directory: (directory / 'tokenizer_config.json').write_text('{'),
  ),
  _case(
    "(`eos_token` must be text, but is ['[SEP]'])",
    lambda directory: (directory / 'tokenizer_config.json').write_text(
      '{"eos_token": ["[SEP]"]}'
    ),
  ),
  _case(
    'from the vocabulary). Use a vocabulary whose `unk_token` or `unk_id` '
    'is a piece in its ',
    _edit_vocabulary({'b': 0, '[SEP]': 1, 'a': 2}),
  ),
  _case(
    'must encode every text, but does not (WordPiece error: Missing [UNK] ',
    _only_decode_bytes,
  ),
  _case(
    "has 4. Use the model's own vocabulary, or, if this is it, call "
    '`model.resize_token_embeddings(4)`',
    _edit_vocabulary(_VOCABULARY | {'b': 3}),
  ),
)
