"""Corpus, vocabulary and rows of a run.

Nothing here imports TensorFlow until text is tokenized.
"""

import dataclasses
import os
import pathlib
import sys

from models.transformer_config import FROM_DIRECTORY
from tff_fedfish import corpora
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import places
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.data.tokenizers import Tokenizer, load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, run_directory
from tff_fedfish.run.corpus_identity import Corpus
from tff_fedfish.run.row_source import StoredRows, row_source


def open_corpus(config: TrainConfig, directory: str | os.PathLike) -> Corpus:
  """Opens a corpus of the kind that a run trains on, its own or another one.

  Raises:
    UserError: If there is no such corpus, or the model does not take its
      images.
  """
  corpus = row_source(config).open(directory)
  if not config.data.holds_images:
    return corpus
  _require_classes(config, corpus, directory)
  expected, found = (
    f'{" x ".join(map(str, of.image_shape))} in {of.num_classes} classes'
    for of in (config.model_shape(), corpus)
  )
  if found != expected:
    raise UserError(
      f'Corpus {config.data.corpus!r} must have images of {expected}, but in '
      f'{str(directory)!r} they are of {found}. Check which files these are.'
    )
  if corpus.skipped:
    print(f'{str(directory)!r}: skipped {corpus.skipped}.', file=sys.stderr)
  return corpus


def open_tokenizer(
  config: TrainConfig, vocabulary: str | os.PathLike | None
) -> Tokenizer | None:
  """Reads a vocabulary and checks that it fits the model; None with images.

  See `corpora.vocabulary_path` for its name or path.
  """
  if config.data.holds_images:
    return None
  tokenizer = load_tokenizer(corpora.vocabulary_path(vocabulary))
  expected = config.model.vocabulary_size
  if tokenizer.size != expected:
    remedy = (
      'Use the vocabulary that the model was made for, or set '
      f'`--config.model.vocabulary_size={tokenizer.size}` for a new run.'
    )
    if config.model.preset == FROM_DIRECTORY:
      remedy = (
        "Use the model's own vocabulary, or, if this is it, call "
        f'`model.resize_token_embeddings({tokenizer.size})` in transformers '
        'and save the model again.'
      )
    raise UserError(
      f'The model has {expected} token ids (`config.model.vocabulary_size`), '
      f'but the vocabulary {str(vocabulary)!r} has {tokenizer.size}. {remedy}'
    )
  return tokenizer


def open_checkpoint(
  config: TrainConfig, path: pathlib.Path
) -> tuple[checkpoints.Checkpoint, Tokenizer | None]:
  """Opens a checkpoint of a run, without tensors, and the run's vocabulary.

  Raises:
    UserError: If it is damaged, or does not fit the config or the vocabulary.
  """
  vocabulary = path.parent.parent / run_directory.VOCABULARY_NAME
  tokenizer = open_tokenizer(config, vocabulary)
  checkpoint = checkpoints.load_checkpoint(path, None, verify=False)
  run_directory.require_same_run(checkpoint, config, tokenizer, vocabulary)
  return checkpoint, tokenizer


def rows_for_engine(
  config: TrainConfig, rows: ClientRows, vocabulary: pathlib.Path
) -> ClientRows:
  """Returns the rows with which the rounds of a run are fed.

  In process those that are opened; workers open the corpus, and the run's own
  vocabulary, themselves.
  """
  if config.engine.kind == 'in_process':
    return rows
  source = row_source(config)
  data = dataclasses.replace(
    config.data,
    directory=places.absolute(config.data.directory),
    vocabulary=(
      None if config.data.holds_images else str(vocabulary.resolve())
    ),
  )
  return StoredRows(source=dataclasses.replace(source, data=data))


def paths_of_workers(config: TrainConfig, workdir: pathlib.Path) -> list[str]:
  """Returns files and directories that workers on other hosts read."""
  directory = places.absolute(config.data.directory)
  paths = [] if places.is_remote(directory) else [directory]
  if not config.data.holds_images:
    paths.append(str(workdir / run_directory.VOCABULARY_NAME))
  if config.kept_models or config.phases:
    # Stands for states and features beside it, which change.
    paths.append(str(workdir / run_directory.CONFIG_NAME))
  return paths


def _require_classes(config, corpus, directory):
  """Raises UserError unless labels mean what they meant to the model."""
  if not corpus.class_names:
    return
  wanted, found = {*config.resolved.class_names}, {*corpus.class_names}
  if different := sorted(wanted - found) or sorted(found - wanted):
    name = os.fsdecode(different[0])
    verb = 'lacks' if different[0] in wanted else 'also has'
    raise UserError(
      f'{str(directory)!r} must have the {len(wanted)} classes of the model '
      f'(`resolved.classes` of its config.json), but it {verb} {name!r}. Name '
      'a corpus with the same class directories.'
    )
