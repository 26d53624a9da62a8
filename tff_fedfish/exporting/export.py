"""`fedfish export`: a checkpoint's model as files that need no fedfish.

The directory holds `saved_model/`, `model.safetensors`, `vocabulary/` (of a
language model), `config.json`, `README.md` (the model card) and `SHA256SUMS` of
all the others. It is written under a temporary name and renamed last. Of the
format 'huggingface' config.json and model.safetensors are as transformers reads
them; tff_fedfish/huggingface/ knows how.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from tff_fedfish import files
from tff_fedfish.config import load as config_loading
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.exporting import model_card
from tff_fedfish.exporting.trained_model import TrainedModel, load_trained_model
from tff_fedfish.version import __version__

_DEFAULT_FORMATS = ('saved_model', 'safetensors')
FORMATS = (*_DEFAULT_FORMATS, 'huggingface')
SUMS_FILE = 'SHA256SUMS'

_SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
  """A model that was written."""

  directory: pathlib.Path
  model: TrainedModel
  remark: str | None
  """Why the model card does not describe the corpus; None: it does."""


def export(
  checkpoint: str | os.PathLike,
  output: str | os.PathLike,
  formats: Sequence[str] | None = None,
  *,
  client: str | None = None,
) -> Export:
  """Writes a checkpoint's model.

  Args:
    checkpoint: A checkpoint or a run directory (its last).
    output: The directory to write; must not exist, or be empty.
    formats: At least one of `FORMATS`, each once, but not both of 'safetensors'
      and 'huggingface', which name their files alike. None: the first two.
    client: See `load_trained_model`.

  Raises:
    UserError: If an argument, the checkpoint or its run cannot be used.
    FailedError: If a file cannot be written, such as on a full disk; nothing is
      left of it.
  """
  if formats is not None and (
    not formats or sorted(formats) != sorted(set(formats) & set(FORMATS))
  ):
    raise UserError(
      f'`--format` must name {" or ".join(FORMATS)}, or several with a comma '
      f'between them, found {",".join(formats)!r}. Leave it out for '
      f'{" and ".join(_DEFAULT_FORMATS)}.'
    )
  if formats is not None and {'safetensors', 'huggingface'} <= {*formats}:
    raise UserError(
      '`--format` must name one of safetensors and huggingface, as both write '
      f'model.safetensors, found {",".join(formats)!r}. Export twice.'
    )
  directory = files.require_usable_output(output, '--output')
  model = load_trained_model(checkpoint, client=client)
  formats = formats or _DEFAULT_FORMATS
  if 'huggingface' in formats and model.is_of_images:
    raise UserError(
      "`--format` 'huggingface' is for language models, but "
      f'{str(model.run)!r} trained {model.config.model.preset!r} on images. '
      'Leave it out.'
    )
  card = model_card.gather(model)
  config = json_config(model)
  with (
    _naming_failures(directory),
    files.write_directory_atomically(directory) as temporary,
  ):
    if not model.is_of_images:
      model.tokenizer.save(temporary / 'vocabulary')
    if 'huggingface' in formats:
      _write_huggingface(temporary, model, config)
    else:
      files.write_json(temporary / 'config.json', config)
    if 'safetensors' in formats:
      # The format's metadata are strings.
      metadata = {'config': json.dumps(config, ensure_ascii=False)}
      _write_tensors(temporary, model.weights, metadata)
    if 'saved_model' in formats:
      from tff_fedfish.exporting import saved_model

      saved_model.write_saved_model(
        temporary / 'saved_model', model.shape, model.weights
      )
    with files.write_atomically(temporary / 'README.md') as file:
      file.write(card.render(formats))
    sums = ''.join(_sums(temporary))
    with files.write_atomically(temporary / SUMS_FILE) as file:
      file.write(sums)
  return Export(directory=directory, model=model, remark=card.remark)


def _write_tensors(directory, tensors, metadata):
  path = directory / 'model.safetensors'
  # The library reads the memory as if it were contiguous.
  safetensors.numpy.save_file(
    {name: np.ascontiguousarray(w) for name, w in tensors.items()},
    path,
    metadata,
  )
  # The library makes it readable only for its owner.
  path.chmod(0o666 & ~files.umask())


def _write_huggingface(directory, model, config):
  # Late: other exports do not need the library of the vocabulary.
  from tff_fedfish.huggingface import gpt2, tokenizer_files

  end = model.tokenizer.end_of_text_id
  written = gpt2.to_config(model.shape, end) | {'fedfish': config}
  files.write_json(directory / 'config.json', written)
  ends = {'bos_token_id': end, 'eos_token_id': end}
  files.write_json(
    directory / 'generation_config.json',
    ends | {'pad_token_id': model.tokenizer.padding_id},
  )
  tokenizer_files.write(
    model.tokenizer, directory, sequence_length=model.shape.sequence_length
  )
  tensors = gpt2.to_tensors(model.shape, model.weights)
  # The library asks which framework's layout it is; GPT-2 has only one.
  _write_tensors(directory, tensors, {'format': 'pt'})


def json_config(model: TrainedModel) -> dict[str, Any]:
  """Returns the contents of config.json, without paths of this machine.

  Only the last names of `data.directory`, `data.vocabulary` and
  `training.start_from` are kept, and nothing of the engine and of the seed of
  noise.
  """
  run = config_loading.to_json_dict(model.config)
  del run['engine']
  # Whoever knows it can take the noise of DP-SGD away.
  del run['seeds']['privacy_seed']
  for part, name in (
    ('data', 'directory'),
    ('data', 'vocabulary'),
    ('training', 'start_from'),
  ):
    if run[part][name] is not None:
      run[part][name] = model_card.last_name(run[part][name])
  contents = {
    'schema_version': _SCHEMA_VERSION,
    'fedfish_version': __version__,
    'round': model.round_num,
    'model': dataclasses.asdict(model.shape),
  }
  if not model.is_of_images:
    names = ('kind', 'size', 'lower_case')
    special = ('end_of_text_id', 'padding_id', 'unknown_id')
    contents['vocabulary'] = {
      name: getattr(model.tokenizer, name) for name in (*names, *special)
    }
  return contents | {'run': run}


def _sums(directory: pathlib.Path) -> Iterator[str]:
  """Yields a line for every file, as `sha256sum --check` reads it."""
  for path in sorted(filter(pathlib.Path.is_file, directory.rglob('*'))):
    yield f'{files.sha256_of(path)}  {path.relative_to(directory).as_posix()}\n'


@contextlib.contextmanager
def _naming_failures(directory: pathlib.Path) -> Iterator[None]:
  """Turns the libraries' errors, such as on a full disk, into one line."""
  import tensorflow as tf

  try:
    yield
  except (OSError, safetensors.SafetensorError, tf.errors.OpError) as error:
    # Libraries end with the system's words.
    reason = ' '.join(str(error).split())[-300:]
    raise FailedError(
      f'{str(directory)!r} could not be written ({reason}); nothing of it is '
      'left.'
    ) from error
