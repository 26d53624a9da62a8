"""Settings that a config leaves to the files that it names."""

import dataclasses
from typing import Any

from models.transformer_config import FROM_DIRECTORY, PRESETS
from tff_fedfish.config.schema import ResolvedConfig
from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError
from tff_fedfish.fields import ConfigError, Section


def resolve(
  sections: dict[str, Section],
  facts: ResolvedConfig,
  *,
  has_vocabulary_size: bool = True,
) -> dict[str, Section]:
  """Returns the sections of a config with all that is left to files.

  Args:
    sections: Sections by name, each right by itself.
    facts: Facts that are known already; others are read.
    has_vocabulary_size: Whether `model.vocabulary_size` was given. Otherwise
      the vocabulary's size replaces the preset's.

  Returns:
    The sections, with `resolved`.

  Raises:
    UserError: If something has to be read, but cannot be.
  """
  sections = dict(sections)
  sections['model'] = _with_directory_sizes(**sections)
  if not has_vocabulary_size:
    sections['model'] = _with_vocabulary_size(**sections)
  sections['resolved'] = _image_facts(sections['data'], facts)
  return sections


def facts_of(values: Any) -> ResolvedConfig:
  """Returns the section `resolved` of a config.json.

  Raises:
    ConfigError: If it holds anything else.
  """
  try:
    facts = ResolvedConfig(**values)
    of_images = *facts.image_shape, facts.classes
    if len({value is None for value in of_images}) > 1:
      raise ValueError('a fact is missing')
    # Names may hold a wrong escape.
    _ = facts.classes and facts.class_names
  except (TypeError, ValueError) as error:
    raise ConfigError(
      [f'`config.resolved` must hold facts of a run, found {values!r}']
    ) from error
  return facts


def _with_directory_sizes(model, data, training, **_):
  if model.preset != FROM_DIRECTORY or None not in model.sizes.values():
    return model
  if training.start_from is None:
    raise UserError(
      '`config.training.start_from` is required with preset '
      f"'{FROM_DIRECTORY}'. Name the directory of the model."
    )
  from tff_fedfish.huggingface import pretrained

  shape = pretrained.read_shape(
    training.start_from, '--config.training.start_from', data.sequence_length
  )
  sizes = {
    name: getattr(shape, name) if value is None else value
    for name, value in model.sizes.items()
  }
  return dataclasses.replace(model, **sizes)


def _with_vocabulary_size(model, data, **_):
  if model.preset not in (*PRESETS, 'custom') or data.vocabulary is None:
    return model
  # Late: they take NumPy, which a wrong config need not wait for.
  from tff_fedfish import corpora
  from tff_fedfish.data.tokenizers import load_tokenizer

  try:
    tokenizer = load_tokenizer(corpora.vocabulary_path(data.vocabulary))
  except UserError:
    # Plans are made before there is a vocabulary; a run refuses it later.
    if model.vocabulary_size is None:
      raise
    return model
  return dataclasses.replace(model, vocabulary_size=tokenizer.size)


def _image_facts(data, facts):
  if data.corpus != 'image_folder' or facts.classes is not None:
    return facts
  # Late: it takes NumPy, which other configs need not wait for.
  from tff_fedfish.data.images.folder import list_folder, read_image

  folder = list_folder(data.directory)
  # Other images are compared with the first when they are read.
  height, width, channels = read_image(folder.paths[0]).shape
  return dataclasses.replace(
    facts,
    image_height=height,
    image_width=width,
    image_channels=channels,
    classes='/'.join(map(client_id_to_text, folder.class_names)),
  )
