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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from tff_fedfish import files
from tff_fedfish.config import load as config_loading
from tff_fedfish.config import names
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.exporting import model_card
from tff_fedfish.exporting.trained_model import TrainedModel, load_trained_model
from tff_fedfish.version import __version__

_DEFAULT_FORMATS = ('saved_model', 'safetensors')
FORMATS = (*_DEFAULT_FORMATS, 'huggingface')
SUMS_FILE = 'SHA256SUMS'


def export(
  checkpoint: str | os.PathLike,
  output: str | os.PathLike,
  formats: Sequence[str] = _DEFAULT_FORMATS,
  *,
  client: str | None = None,
) -> tuple[pathlib.Path, TrainedModel]:
  """Writes a checkpoint's model.

  Args:
    checkpoint: A checkpoint or a run directory (its last).
    output: The directory to write; must not exist, or be empty.
    formats: Some of `FORMATS`, but not both of 'safetensors' and 'huggingface',
      which name their files alike.
    client: See `load_trained_model`.

  Returns:
    (output directory, model).

  Raises:
    UserError: If an argument, the checkpoint or its run cannot be used.
    FailedError: If a file cannot be written, such as on a full disk; nothing is
      left of it.
  """
  is_twice = {'safetensors', 'huggingface'} <= {*formats}
  if not formats or {*formats} - {*FORMATS} or is_twice:
    raise UserError(
      '`--format` must name saved_model, safetensors or huggingface, or '
      'saved_model and one of the others with a comma between them, found '
      f'{",".join(formats)!r}. Leave it out for {",".join(_DEFAULT_FORMATS)}.'
    )
  directory = files.require_usable_output(output, '--output')
  model = load_trained_model(checkpoint, client=client)
  if 'huggingface' in formats and model.is_of_images:
    raise UserError(
      "`--format` 'huggingface' is for language models, but "
      f'{str(model.run)!r} trained {model.config.model.preset!r} on images. '
      'Leave it out.'
    )
  card = model_card.render(model, formats)
  with (
    _naming_failures(directory),
    files.write_directory_atomically(directory, marker=SUMS_FILE) as temporary,
  ):
    _write_model(temporary, model, formats)
    with files.write_atomically(temporary / 'README.md') as file:
      file.write(card)
    # As `sha256sum --check` reads it.
    sums = ''.join(
      f'{files.sha256_of(p)}  {p.relative_to(temporary).as_posix()}\n'
      for p in sorted(filter(pathlib.Path.is_file, temporary.rglob('*')))
    )
    with files.write_atomically(temporary / SUMS_FILE) as file:
      file.write(sums)
  return directory, model


def json_config(model: TrainedModel) -> dict[str, Any]:
  """Returns the contents of config.json, without paths of this machine.

  Of settings that are paths only the last names are kept; settings of the
  engine and the seed of noise are left out.
  """
  run = config_loading.to_json_dict(model.config)
  del run['engine']
  # Whoever knows it can take the noise of DP-SGD away.
  del run['seeds']['privacy_seed']
  for dotted in names.PATHS:
    section, name = dotted.split('.')
    if run[section][name] is not None:
      run[section][name] = model_card.last_name(run[section][name])
  contents = {
    'schema_version': 1,
    'fedfish_version': __version__,
    'round': model.round_num,
    'model': dataclasses.asdict(model.shape),
  }
  if not model.is_of_images:
    facts = ('kind', 'size', 'lower_case')
    facts += ('end_of_text_id', 'padding_id', 'unknown_id')
    tokenizer = model.tokenizer
    contents['vocabulary'] = {name: getattr(tokenizer, name) for name in facts}
  return contents | {'run': run}


def _write_model(
  directory: pathlib.Path, model: TrainedModel, formats: Sequence[str]
) -> None:
  config = json_config(model)
  if not model.is_of_images:
    model.tokenizer.save(directory / 'vocabulary')
  if 'huggingface' in formats:
    _write_huggingface(directory, model, config)
  else:
    files.write_json(directory / 'config.json', config)
  if 'safetensors' in formats:
    # The format's metadata are strings.
    metadata = {'config': json.dumps(config, ensure_ascii=False)}
    _write_tensors(directory, model.weights, metadata)
  if 'saved_model' in formats:
    # Late: it needs TensorFlow.
    from tff_fedfish.exporting import saved_model

    saved_model.write_saved_model(
      directory / 'saved_model', model.shape, model.weights
    )


def _write_huggingface(
  directory: pathlib.Path, model: TrainedModel, config: Mapping[str, Any]
) -> None:
  # Late: other exports do not need the library of the vocabulary.
  from tff_fedfish.huggingface import gpt2, tokenizer_files

  end = model.tokenizer.end_of_text_id
  files.write_json(
    directory / 'config.json',
    gpt2.to_config(model.shape, end) | {'fedfish': config},
  )
  ids = {'bos_token_id': end, 'eos_token_id': end}
  ids['pad_token_id'] = model.tokenizer.padding_id
  files.write_json(directory / 'generation_config.json', ids)
  tokenizer_files.write(
    model.tokenizer, directory, sequence_length=model.shape.sequence_length
  )
  tensors = gpt2.to_tensors(model.shape, model.weights)
  # The library asks which framework's layout it is; GPT-2 has only one.
  _write_tensors(directory, tensors, {'format': 'pt'})


def _write_tensors(
  directory: pathlib.Path,
  tensors: Mapping[str, np.ndarray],
  metadata: Mapping[str, str],
) -> None:
  path = directory / 'model.safetensors'
  # The library reads the memory as if it were contiguous.
  contiguous = {name: np.ascontiguousarray(w) for name, w in tensors.items()}
  safetensors.numpy.save_file(contiguous, path, metadata)
  # The library makes it readable only for its owner.
  path.chmod(0o666 & ~files.umask())


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
