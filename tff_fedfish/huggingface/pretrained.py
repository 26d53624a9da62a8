"""Directories with a model that `transformers` or `fedfish export` saved."""

import contextlib
import dataclasses
import os
import pathlib
from typing import Any

import ml_dtypes  # noqa: F401  Lets NumPy know 'bfloat16'.
import numpy as np
import safetensors

from models.transformer_config import TransformerConfig
from tff_fedfish import files
from tff_fedfish.data.tokenizers import METADATA_FILE
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import gpt2

CONFIG_FILE = 'config.json'
WEIGHTS_FILE = 'model.safetensors'
_INDEX_FILE = 'model.safetensors.index.json'
# From the codes of safetensors to NumPy's names.
_DTYPES = {
  'F64': 'float64',
  'F32': 'float32',
  'F16': 'float16',
  'BF16': 'bfloat16',
}


def is_pretrained(path: str | os.PathLike) -> bool:
  """Returns whether a path is a directory with such a model's config.json."""
  return _config_or_none(pathlib.Path(path) / CONFIG_FILE) is not None


def read_shape(
  path: str | os.PathLike, option: str, sequence_length: int | None = None
) -> TransformerConfig:
  """Returns the shape of the model in a directory.

  Args:
    path: The directory.
    option: The option that named it, for errors.
    sequence_length: Positions to use, at most those that the model has. None:
      all.

  Raises:
    UserError: If there is no such model, it is of another arrangement than
      GPT-2's, or has fewer positions.
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
    return shape
  if sequence_length > shape.sequence_length:
    raise UserError(
      f'`--config.data.sequence_length` is {sequence_length}, but the model of '
      f'{str(path)!r} has {shape.sequence_length} positions. Lower it.'
    )
  return dataclasses.replace(shape, sequence_length=sequence_length)


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


def check_weights(path: str | os.PathLike, shape: TransformerConfig) -> None:
  """Raises UserError where `read_weights` would; keeps no tensor."""
  with _tensors(pathlib.Path(path)) as tensors:
    for names in gpt2.find_tensors(shape, tensors, str(path)).values():
      for name in names:
        tensors[name].read()


def read_weights(
  path: str | os.PathLike, shape: TransformerConfig
) -> dict[str, np.ndarray]:
  """Returns the weights of the model in a directory, float32.

  Args:
    path: The directory.
    shape: As `read_shape` returned it.

  Returns:
    The weights by the names, and in the order, of `weight_shapes`.

  Raises:
    UserError: If they are missing, damaged, of another shape or type, or not
      finite as float32.
  """
  with _tensors(pathlib.Path(path)) as tensors:
    names = gpt2.find_tensors(shape, tensors, str(path))
    return gpt2.to_weights(shape, names, lambda name: tensors[name].read())


def _config_or_none(file: pathlib.Path) -> dict[str, Any] | None:
  with contextlib.suppress(OSError, ValueError):
    value = files.parse_json(file.read_bytes())
    if isinstance(value, dict) and 'model_type' in value:
      return value
  return None


class _Tensor:
  """A tensor in a file, as PyTorch's classes shape it."""

  def __init__(self, file, key, path):
    self._file, self._key, self._path = file, key, path
    # TensorFlow's classes keep biases as rows of a matrix.
    self._is_row = key.endswith('/bias:0')
    tensor = file.get_slice(key)
    self.shape = tensor.get_shape()[int(self._is_row) :]
    self.dtype = _DTYPES.get(tensor.get_dtype(), tensor.get_dtype())

  def read(self):
    tensor = self._file.get_tensor(self._key)
    # What is too large becomes infinite.
    with np.errstate(over='ignore'):
      tensor = tensor.astype(np.float32, copy=False)
    if num_wrong := tensor.size - np.count_nonzero(np.isfinite(tensor)):
      raise UserError(
        f'{str(self._path)!r}: tensor {self._key!r} of {self.dtype} must hold '
        f'finite float32 numbers, but {num_wrong} of its {tensor.size} are '
        'NaN, infinite or too large. Name a model with finite weights.'
      )
    return tensor[0] if self._is_row else tensor


@contextlib.contextmanager
def _tensors(path):
  """Yields the tensors of a directory by the names of PyTorch's classes."""
  names = [WEIGHTS_FILE]
  if not (path / WEIGHTS_FILE).is_file():
    names = _indexed_files(path)
  try:
    with contextlib.ExitStack() as stack:
      tensors = {}
      for name in names:
        file = stack.enter_context(
          safetensors.safe_open(path / name, framework='np')
        )
        keys = file.keys()
        tensors |= {_plain_name(key): _Tensor(file, key, path) for key in keys}
      yield tensors
  except (OSError, safetensors.SafetensorError) as error:
    raise UserError(
      f'The weights in {str(path)!r} cannot be read ({error}). Copy the whole '
      'directory again.'
    ) from error


def _plain_name(name):
  """Returns the name that PyTorch's classes give what TensorFlow's wrote."""
  if '/' not in name:
    return name
  *parents, last = name.removesuffix(':0').replace('h_._', 'h/').split('/')
  last = {'gamma': 'weight', 'beta': 'bias', 'embeddings': 'weight'}.get(
    last, last
  )
  return '.'.join([*parents, last])


def _indexed_files(path):
  """Returns the names of the files of a model that is saved in several."""
  try:
    index = files.parse_json((path / _INDEX_FILE).read_bytes())
    names = {pathlib.Path(n).name for n in index['weight_map'].values()}
    if not names:
      raise ValueError('it names none')
    for name in sorted(names):
      if not (path / name).is_file():
        raise UserError(
          f'{str(path / _INDEX_FILE)!r} names {name!r}, which is no file '
          'beside it. Copy the whole directory again.'
        )
    return sorted(names)
  except FileNotFoundError:
    pass
  except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
    raise UserError(
      f'{str(path / _INDEX_FILE)!r} must name the files of the weights, but '
      f'cannot be read as such ({error!r}). Copy the whole directory again.'
    ) from error
  raise UserError(
    f'{str(path)!r} must hold {WEIGHTS_FILE} or {_INDEX_FILE}, but does not. '
    'Save the model with `save_pretrained(DIR, safe_serialization=True)`.'
  )
