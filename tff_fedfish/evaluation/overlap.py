"""Clients and documents of an evaluated corpus that a run trained on."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_fedfish.data import places, randomness
from tff_fedfish.data.cohorts import draw_order
from tff_fedfish.data.grouped_corpus import GroupedCorpus, example_texts
from tff_fedfish.data.token_store import TokenStore
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.plan import Plan
from tff_fedfish.evaluation.summary import Overlap
from tff_fedfish.progress import stage
from tff_fedfish.run.corpus_identity import Corpus
from tff_fedfish.run.row_source import row_source

# Documents of the evaluated clients, of each client, and of training.
_MAX_EVALUATED, _MAX_OF_CLIENT, _MAX_TRAINING = 2_000, 32, 100_000
# Clients of training that are read, and the bytes of their documents.
_MAX_CLIENTS, _MAX_BYTES = 20_000, 256 << 20


def measure_overlap(plan: Plan, client_ids: Sequence[bytes]) -> Overlap | None:
  """Compares evaluated clients with those that trained; see `Overlap`.

  Returns:
    None for the run's own corpus, for a model without a run, and where the
    training corpus is not at hand or ids have no meaning outside of it.
  """
  if plan.split is not None or plan.run is None:
    return None
  source, directory = row_source(plan.config), plan.config.data.directory
  # Ids of divided images are numbers. A store would take many requests.
  if plan.config.partition.divides_images or places.is_remote(directory):
    return None
  try:
    with stage('comparing with the training corpus'):
      training = source.open(directory)
      trained_on = plan.checkpoint.contents.get('corpus_fingerprint')
      if training.fingerprint != trained_on:
        return None
      trained = source.split(training).participating
      return Overlap(
        clients=sum(client_id in trained for client_id in client_ids),
        num_clients=len(client_ids),
        **_count_documents(plan, client_ids, training, trained),
      )
  except (OSError, UserError):
    # The training corpus is gone, or damaged.
    return None


def _count_documents(plan, client_ids, training, trained):
  """Returns the fields of `Overlap` on documents; {} if they are not compared.

  Texts are compared, or token ids if the training corpus is tokenized.
  """
  is_tokenized = isinstance(training, TokenStore)
  if not is_tokenized and not isinstance(plan.corpus, GroupedCorpus):
    return {}
  seed = plan.config.seeds.split_seed
  documents_of = _reader(plan, training, is_tokenized)
  known, num_read, num_bytes = set(), 0, 0
  order = draw_order(trained, seed=seed, round_num=0)
  for client_id in itertools.islice(order, _MAX_CLIENTS):
    for document in documents_of(client_id):
      known.add(_hash(document))
      num_read += 1
      num_bytes += len(document)
    if num_read >= _MAX_TRAINING or num_bytes >= _MAX_BYTES:
      break
  documents_of = _reader(plan, plan.corpus, is_tokenized)
  is_known = []
  for client_id in client_ids:
    documents = documents_of(client_id)
    order = randomness.generator('overlap', seed, client_id)
    numbers = order.permutation(len(documents))[:_MAX_OF_CLIENT]
    is_known += [_hash(documents[number]) in known for number in numbers]
    if len(is_known) >= _MAX_EVALUATED:
      break
  is_known = is_known[:_MAX_EVALUATED]
  return {
    'documents': sum(is_known),
    'num_documents': len(is_known),
    'num_training_documents': num_read,
  }


def _reader(
  plan: Plan, corpus: Corpus, is_tokenized: bool
) -> Callable[[bytes], Sequence[Any]]:
  """Returns a function from a client id to texts, or arrays of token ids."""
  if is_tokenized:
    rows = row_source(plan.config).client_rows(corpus, plan.tokenizer)
    return rows.documents
  return lambda client_id: example_texts(client_id, corpus.examples(client_id))


def _hash(document):
  if isinstance(document, np.ndarray):
    document = document.astype(np.int32)
  return hashlib.blake2b(document, digest_size=8).digest()
