"""Everything a run reads, opened and checked before anything is built.

Nothing here imports TensorFlow until all that can be checked without it has
been.
"""

import dataclasses
import hashlib
import os

from tff_fedfish.data.client_splits import ClientSplit, split_clients
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.tokenizers import Tokenizer, load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.training.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class RunInputs:
  """A run's corpus, tokenizer and split of clients."""

  corpus: GroupedCorpus
  corpus_fingerprint: str
  split: ClientSplit
  tokenizer: Tokenizer


def open_inputs(
  config: TrainConfig, *, vocabulary: str | os.PathLike | None = None
) -> RunInputs:
  """Opens what a config names.

  Args:
    config: The run's config.
    vocabulary: Read this vocabulary in place of `config.data.vocabulary`, such
      as the copy that a run keeps.

  Returns:
    The inputs.

  Raises:
    UserError: If the corpus or the vocabulary cannot be used, the cohort is
      larger than the participating clients, nobody is held out where held-out
      clients are to be scored, or the vocabulary does not fit the model.
  """
  corpus = GroupedCorpus(config.data.directory)
  split = split_clients(
    corpus.client_ids,
    split_seed=config.seeds.split_seed,
    held_out_fraction=config.client_splits.held_out_fraction,
  )
  cohort_size = config.cohorts.cohort_size
  if cohort_size > len(split.participating):
    raise UserError(
      f'`--config.cohorts.cohort_size` is {cohort_size}, but only '
      f'{len(split.participating)} participating clients exist in '
      f'{config.data.directory!r}. Lower cohort_size, or group the corpus by '
      'a finer key.'
    )
  if config.evaluation.num_clients and not split.held_out:
    raise UserError(
      '`--config.evaluation.num_clients` is '
      f'{config.evaluation.num_clients}, but of {len(corpus.client_ids)} '
      f'clients in {config.data.directory!r} none is held out. Raise '
      '`--config.client_splits.held_out_fraction`, or set num_clients to 0.'
    )
  tokenizer = load_tokenizer(vocabulary or config.data.vocabulary)
  require_vocabulary_size(
    tokenizer.size,
    config.model.vocabulary_size,
    vocabulary or config.data.vocabulary,
  )
  return RunInputs(corpus, corpus_fingerprint(corpus), split, tokenizer)


def require_vocabulary_size(
  found: int, required: int, source: str | os.PathLike
) -> None:
  """Raises UserError unless a vocabulary fits the model that was made."""
  if found != required:
    raise UserError(
      f'The model has {required} token ids (`config.model.vocabulary_size`), '
      f'but the vocabulary {str(source)!r} has {found}. Use the vocabulary '
      'that the model was made for, or set '
      f'`--config.model.vocabulary_size={found}` for a new run.'
    )


def corpus_fingerprint(corpus: GroupedCorpus) -> str:
  """Returns what identifies a corpus by its clients, wherever it lies.

  Made of every client's id, examples and words, so that it does not depend on
  the number of shards and a corpus grouped again is the same one.
  """
  hasher = hashlib.sha256()
  for client_id in corpus.client_ids:
    hasher.update(len(client_id).to_bytes(8, 'big') + client_id)
  for column in ('num_examples', 'num_words'):
    hasher.update(corpus.sizes(column).astype('>i8').tobytes())
  return hasher.hexdigest()
