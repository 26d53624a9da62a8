"""Directories with a model that `transformers` or `fedfish export` saved."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  Lets NumPy know 'bfloat16'.
import numpy as np
import safetensors

from models.transformer_config import TransformerConfig
from tff_fedfish import files, json_values
from tff_fedfish.data.tokenizers import METADATA_FILE, load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import gpt2

CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'
_INDEX_FILE = 'model.safetensors.index.json'
_MAX_PADDING = 1024


def is_pretrained(path: str | os.PathLike) -> bool:
  """Returns whether a path is a directory with such a model's config.json."""
  return _config_or_none(pathlib.Path(path) / CONFIG_FILE) is not None


def read_shape(
  path: str | os.PathLike, option: str, sequence_length: int | None = None
) -> TransformerConfig:
  """Returns the shape of the model in a directory.

  Its vocabulary has the size of the tokenizer beside it: embeddings that are
  padded by up to 1,024 rows, or as many as there are tokens, are cut.

  Args:
    path: The directory.
    option: The option that named it, for errors.
    sequence_length: Positions to use, at most those that the model has. None:
      all.

  Raises:
    UserError: If there is no such model or no vocabulary, or it is of another
      arrangement than GPT-2's, has fewer positions, or embeds many more
      tokens than there are.
  """
  file = pathlib.Path(path) / CONFIG_FILE
  config = _config_or_none(file)
  if config is None:
    raise UserError(
      f'`{option}` must be a directory with a {CONFIG_FILE} of transformers, '
      f'but {str(path)!r} is none. Name one that `save_pretrained` or `fedfish '
      'export --format huggingface` wrote.'
    )
  shape = gpt2.to_shape(config, str(file))
  if sequence_length is None:
    sequence_length = shape.sequence_length
  if sequence_length > shape.sequence_length:
    raise UserError(
      f'`--config.data.sequence_length` is {sequence_length}, but the model of '
      f'{str(path)!r} has {shape.sequence_length} positions. Lower it.'
    )
  # The last one: a run's own kinds of vocabularies import TensorFlow.
  num_tokens = load_tokenizer(vocabularies(path, option)[-1]).size
  if shape.vocabulary_size - num_tokens > min(_MAX_PADDING, num_tokens):
    raise UserError(
      f'`{option}`: the model of {str(path)!r} embeds {shape.vocabulary_size} '
      f'tokens, but the {METADATA_FILE} beside it has {num_tokens}. Save the '
      "model's own AutoTokenizer with `save_pretrained(DIR)`, or call "
      f'model.resize_token_embeddings({num_tokens}).'
    )
  return dataclasses.replace(
    shape,
    sequence_length=sequence_length,
    vocabulary_size=min(shape.vocabulary_size, num_tokens),
  )


def vocabularies(path: str | os.PathLike, option: str) -> list[pathlib.Path]:
  """Returns where the vocabulary of the model in a directory may be loaded.

  Of an exported model it is there twice: as the run had it, and for
  transformers.

  Raises:
    UserError: If it is nowhere.
  """
  path = pathlib.Path(path)
  found = [
    directory
    for directory in (path / 'vocabulary', path)
    if (directory / METADATA_FILE).is_file()
  ]
  if not found:
    raise UserError(
      f'`{option}`: {str(path)!r} must hold {METADATA_FILE}, but does not. '
      "Save the model's AutoTokenizer with `save_pretrained(DIR)`."
    )
  return found


def check_weights(path: str | os.PathLike) -> None:
  """Raises UserError where `read_weights` would; keeps no tensor."""
  with _tensors(pathlib.Path(path)) as tensors:
    for parts in tensors.values():
      for tensor in parts:
        tensor.read()


def read_weights(
  path: str | os.PathLike, shape: TransformerConfig
) -> dict[str, np.ndarray]:
  """Returns the weights of the model in a directory, float32.

  A line on standard error says if the embeddings of tokens are cut.

  Args:
    path: The directory.
    shape: As `read_shape` returned it.

  Returns:
    The weights by the names, and in the order, of `weight_shapes`.

  Raises:
    UserError: If they are missing, damaged, of another shape or type, not all
      used, or not finite as float32.
  """
  with _tensors(pathlib.Path(path)) as tensors:
    num_rows = tensors['token_embedding'][0].shape[0]
    if num_rows > shape.vocabulary_size:
      print(
        f'fedfish: note: {str(path)!r} embeds {num_rows} tokens; only the '
        f'{shape.vocabulary_size} of its vocabulary are read.',
        file=sys.stderr,
      )
    return gpt2.to_weights(shape, tensors)


def _config_or_none(file: pathlib.Path) -> dict[str, Any] | None:
  with contextlib.suppress(OSError, ValueError):
    value = files.parse_json(file.read_bytes())
    if isinstance(value, dict) and 'model_type' in value:
      return value
  return None


class _Tensor:
  """A tensor in an open file."""

  def __init__(self, file, name, path):
    self._file, self._name, self._path = file, name, path
    header = file.get_slice(name)
    self.shape, self.dtype = header.get_shape(), header.get_dtype()

  def read(self) -> np.ndarray:
    """Returns the values, float32."""
    tensor = self._file.get_tensor(self._name)
    # What is too large becomes infinite.
    with np.errstate(over='ignore'):
      tensor = tensor.astype(np.float32, copy=False)
    if num_wrong := tensor.size - np.count_nonzero(np.isfinite(tensor)):
      raise UserError(
        f'{str(self._path)!r}: tensor {self._name!r} of {self.dtype} must hold '
        f'finite float32 numbers, but {num_wrong} of its {tensor.size} are '
        'NaN, infinite or too large. Name a model with finite weights.'
      )
    return tensor


@contextlib.contextmanager
def _tensors(
  path: pathlib.Path,
) -> Iterator[Mapping[str, list[_Tensor]]]:
  """Yields weight -> its tensors, once they fit the shape in config.json."""
  file = path / CONFIG_FILE
  shape = gpt2.to_shape(_config_or_none(file) or {}, str(file))
  try:
    with contextlib.ExitStack() as stack:

      @functools.cache
      def opened(name):
        file = safetensors.safe_open(path / name, framework='np')
        return stack.enter_context(file)

      file_of = _file_of(path)
      if file_of is None:
        file_of = dict.fromkeys(opened(WEIGHTS_FILE).keys(), WEIGHTS_FILE)
      # A file may also hold an old tensor that the index has in another one.
      tensors = {n: _Tensor(opened(file_of[n]), n, path) for n in file_of}
      found = gpt2.find_tensors(shape, tensors, str(path))
      [embedding] = found['token_embedding']
      head = tensors.get(gpt2.HEAD)
      if head and not np.array_equal(head.read(), embedding.read()):
        raise UserError(
          f"{str(path)!r}: tensor {gpt2.HEAD!r} must equal the tokens' "
          'embedding, as the model has one matrix for both, but differs. Name '
          'a model with tied embeddings.'
        )
      yield found
  except (OSError, ValueError, safetensors.SafetensorError) as error:
    raise UserError(
      f'The weights in {str(path)!r} cannot be read ({error}). Copy the whole '
      'directory again.'
    ) from error


def _file_of(path: pathlib.Path) -> dict[str, str] | None:
  """Returns the file of each tensor by the index; None: there is one file."""
  if (path / WEIGHTS_FILE).is_file():
    return None
  if not (path / _INDEX_FILE).is_file():
    raise UserError(
      f'{str(path)!r} must hold {WEIGHTS_FILE} or {_INDEX_FILE}, but does not. '
      'Save the model with `save_pretrained(DIR, safe_serialization=True)`.'
    )
  index = files.parse_json((path / _INDEX_FILE).read_bytes())
  index = json_values.from_json(dict[str, Any], index, _INDEX_FILE)
  file_of = json_values.from_json(
    dict[str, str], index.get('weight_map'), 'weight_map'
  )
  for name in file_of.values():
    # A run records the hashes of the files beside config.json, and no others.
    if pathlib.Path(name).name != name:
      raise ValueError(f'{name!r} in {_INDEX_FILE} is in another directory')
  return file_of
