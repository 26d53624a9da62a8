"""Everything a run reads; `run_checks` opens it before anything is built.

Nothing here imports TensorFlow until all that can be checked without it has
been.
"""

import contextlib
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from models.transformer_config import FROM_DIRECTORY
from tff_fedfish import corpora
from tff_fedfish.config.data_settings import DataConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import client_splits, merged_clients, places
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.data.divided_clients import DividedClients
from tff_fedfish.data.merged_clients import Merge, MergedClients
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.data.stored_sequences import StoredSequences
from tff_fedfish.data.token_store import TokenStore, open_text
from tff_fedfish.data.tokenizers import Tokenizer, load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.progress import Progress
from tff_fedfish.run import checkpoints, row_division, run_directory
from tff_fedfish.run.corpus_identity import Corpus

# Clients whose affinity to each other each of them keeps.
_MAX_AFFINITIES = 4096
# Fewer are divided in some tenths of a second.
_MANY_CLIENTS = 500_000


def training_clients(
  config: TrainConfig, split: ClientSplit
) -> Sequence[bytes]:
  """Returns the clients that take part in training, in a fixed order."""
  if config.partition.merges_groups:
    return merged_clients.client_ids(config.partition.num_clients)
  return split.participating


def require_tokens(config: TrainConfig, corpus: Corpus) -> None:
  """Raises UserError where groups are to be merged that are not tokenized."""
  if config.partition.merges_groups and not isinstance(corpus, TokenStore):
    directory = str(corpus.directory)
    command = ['fedfish', 'tokenize', directory, '--vocabulary']
    command.append(str(config.data.vocabulary))
    if places.is_remote(directory):
      command += '--output', 'DIR'
    raise UserError(
      "`--config.partition.scheme` 'merge' must be given the tokens of a "
      f'corpus, but {directory!r} is a grouped corpus. Run '
      f'`{shlex.join(command)}` and name its output.'
    )


def require_cohort(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError unless the participating clients make a cohort."""
  cohort_size = config.cohorts.cohort_size
  num_clients = len(training_clients(config, split))
  # All of no clients are no cohort either.
  if (cohort_size or 1) <= num_clients:
    return
  remedy = 'group the corpus by a finer key'
  if config.partition.scheme is not None:
    remedy = 'raise `--config.partition.num_clients`'
  elif config.data.holds_images:
    remedy = 'hold out a smaller `--config.client_splits.held_out_fraction`'
  raise UserError(
    f'`--config.cohorts.cohort_size` is {cohort_size}, but only '
    f'{num_clients} participating clients exist in '
    f'{config.data.directory!r}. Lower cohort_size, or {remedy}.'
  )


def require_groups(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError unless there are as many groups as merged clients."""
  num_clients = config.partition.num_clients
  num_groups = len(split.participating)
  if config.partition.merges_groups and num_clients > num_groups:
    raise UserError(
      f'`--config.partition.num_clients` is {num_clients}, but only '
      f'{num_groups} groups of {config.data.directory!r} are not held out. '
      'Lower num_clients, or hold out a smaller '
      '`--config.client_splits.held_out_fraction`.'
    )


def require_held_out_clients(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError where clients are to be scored and none is held out."""
  if config.method.personal(config) is not None:
    return
  if config.evaluation.num_clients and not split.held_out:
    raise UserError(
      '`--config.evaluation.num_clients` is '
      f'{config.evaluation.num_clients}, but of {len(split.participating)} '
      f'clients in {config.data.directory!r} none is held out. Raise '
      '`--config.client_splits.held_out_fraction`, or set num_clients to 0.'
    )


def require_downloads(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError where clients cannot be sent the models that are set."""
  personal = config.method.personal(config)
  if personal is None or personal.downloads is None:
    return
  num_clients = len(training_clients(config, split))
  if num_clients > _MAX_AFFINITIES:
    raise UserError(
      f'algorithm.name {config.algorithm.name!r} takes at most '
      f'{_MAX_AFFINITIES} participating clients, as each keeps a number for '
      f'every other, but {config.data.directory!r} has {num_clients}. Raise '
      '`--config.client_splits.held_out_fraction`, or lower '
      '`--config.partition.num_clients`.'
    )
  num_models, num_others = personal.downloads.num_models, num_clients - 1
  if num_models > num_others:
    raise UserError(
      f'`--config.algorithm.num_downloads` is {num_models}, but a client can '
      f'be sent models of only {num_others} other participating clients of '
      f'{config.data.directory!r}. Lower num_downloads.'
    )


def open_corpus(config: TrainConfig, directory: str | os.PathLike) -> Corpus:
  """Opens a corpus of the kind that a run trains on, its own or another one.

  Raises:
    UserError: If there is no such corpus, or the model does not take its
      images.
  """
  if not config.data.holds_images:
    return open_text(directory)
  # Late: what reads the formats of images is of no use to text.
  from tff_fedfish.data.images.load import load_image_corpus

  clients = load_image_corpus(
    config.data.corpus, directory, **image_options(config)
  )
  _require_classes(config, clients, directory)
  expected, found = (
    f'{" x ".join(map(str, of.image_shape))} in {of.num_classes} classes'
    for of in (config.model_shape(), clients)
  )
  if found != expected:
    raise UserError(
      f'Corpus {config.data.corpus!r} must have images of {expected}, but in '
      f'{str(directory)!r} they are of {found}. Check which files these are.'
    )
  if clients.skipped:
    print(f'{str(directory)!r}: skipped {clients.skipped}.', file=sys.stderr)
  return clients


def image_options(config: TrainConfig) -> dict[str, Any]:
  """Returns what `load_image_corpus` is told beside name and directory."""
  partition = config.partition.build(partition_seed=config.seeds.partition_seed)
  held_out = 'whole' if partition is None else config.partition.held_out
  return {'partition': partition, 'held_out': held_out}


def split_corpus(config: TrainConfig, corpus: Corpus) -> ClientSplit:
  """Splits the clients of a run's own corpus as its config says.

  For a large corpus it shows how far it is.
  """
  num_clients = len(corpus.client_ids)
  progress = Progress('divide clients', num_clients, unit='client')
  fraction = config.client_splits.held_out_fraction
  is_shown = fraction is not None and num_clients >= _MANY_CLIENTS
  with progress if is_shown else contextlib.nullcontext():
    return client_splits.split_clients(
      corpus.client_ids,
      split_seed=config.seeds.split_seed,
      held_out_fraction=fraction,
      own_held_out=corpus.held_out,
      on_clients=progress.advance if is_shown else lambda num_clients: None,
    )


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
  found = checkpoints.load_checkpoint(path, None, verify=False)
  run_directory.require_same_run(found, config, tokenizer, vocabulary)
  return found, tokenizer


def client_rows(
  config: TrainConfig,
  corpus: Corpus,
  tokenizer: Tokenizer | None,
  *,
  sequence_length: int | None = None,
) -> ClientRows:
  """Returns the sequences or images of a corpus's clients.

  Images are rows already. Sequences are as long as in training, unless
  `sequence_length` says another number of tokens.
  """
  if tokenizer is None:
    return corpus
  return client_sequences(config.data, corpus, tokenizer, sequence_length)


def client_sequences(
  data: DataConfig,
  corpus: Corpus,
  tokenizer: Tokenizer,
  sequence_length: int | None = None,
) -> ClientSequences:
  """Returns the sequences of a corpus's clients; see `client_rows`.

  Raises:
    UserError: If the corpus is a token store of another vocabulary.
  """
  is_stored = isinstance(corpus, TokenStore)
  kind = StoredSequences if is_stored else ClientSequences
  return kind(
    corpus,
    tokenizer,
    sequence_length=sequence_length or data.sequence_length,
    drop_short_block=data.drop_short_block,
    sampling=data.sampling,
  )


def training_rows(
  config: TrainConfig, corpus: Corpus, tokenizer: Tokenizer | None
) -> ClientRows:
  """Returns the sequences or images of the clients that take part in training.

  Rows for validation and tests are left out.

  Raises:
    UserError: If clients are merged and the corpus is no token store.
  """
  rows = _whole_rows(config, corpus, tokenizer)
  if row_division.division_of(config).is_whole:
    return rows
  return with_test_rows(config, corpus, rows)


def with_test_rows(
  config: TrainConfig, corpus: Corpus, rows: ClientRows
) -> DividedClients:
  """Returns the rows of the clients that take part, with their test rows.

  Rows of `training_rows` that are divided already are returned.
  """
  if isinstance(rows, DividedClients):
    return rows
  return row_division.division_of(config).divide(
    rows,
    training_clients(config, split_corpus(config, corpus)),
    corpus.twins,
  )


def _whole_rows(config, corpus, tokenizer):
  require_tokens(config, corpus)
  rows = client_rows(config, corpus, tokenizer)
  merge = merge_of(config)
  return rows if merge is None else MergedClients(corpus, rows, merge)


def merge_of(config: TrainConfig) -> Merge | None:
  """Returns which groups become which clients; None: each is its own."""
  if not config.partition.merges_groups:
    return None
  return Merge(
    num_clients=config.partition.num_clients,
    partition_seed=config.seeds.partition_seed,
    split_seed=config.seeds.split_seed,
    held_out_fraction=config.client_splits.held_out_fraction,
  )


def _require_classes(config, clients, directory):
  """Raises UserError unless labels mean what they meant to the model."""
  if not clients.class_names:
    return
  wanted, found = {*config.data.class_names}, {*clients.class_names}
  if different := sorted(wanted - found) or sorted(found - wanted):
    name = os.fsdecode(different[0])
    verb = 'lacks' if different[0] in wanted else 'also has'
    raise UserError(
      f'{str(directory)!r} must have the {len(wanted)} classes of the model '
      f'(`config.data.classes`), but it {verb} {name!r}. Name a corpus with '
      'the same class directories.'
    )
