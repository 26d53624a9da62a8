"""`make bench-tokens`: a token store beside tokenizing on demand.

Texts are Debian's package descriptions, which ship. The first table has the
writing of the store; the second what rows of training take: a cohort of small
clients that were not read before, and a round of one client that has all texts.
On demand it is a client too large to be kept in memory, whose texts are in
memory already.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import grouping_jobs
from benchmarks.shared import spread

from tff_fedfish import corpora
from tff_fedfish.data import client_sequences, cohorts
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.merged_clients import Merge, MergedClients
from tff_fedfish.data.stored_sequences import StoredSequences
from tff_fedfish.data.token_store import TokenStore
from tff_fedfish.data.tokenize_corpus import write_token_store
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.printing import format_bytes, print_table

_VOCABULARY = corpora.demo_vocabulary()
_COHORT_SIZE, _NUM_ROWS = 64, 512
_MERGED = b'merged-00000'


def _write(scratch: pathlib.Path, repeats: int) -> None:
  """Prints what writing takes; leaves `corpus` and `tokens` in `scratch`."""
  raw = sorted(corpora.debian_descriptions().glob('c4-train*.json.gz'))
  job = grouping_jobs.make_job(raw, num_shards=8)
  grouping_jobs.run_group_job(job, scratch / 'corpus')
  corpus = GroupedCorpus(scratch / 'corpus')
  load_tokenizer(_VOCABULARY).encode_batch(['Imports TensorFlow.'])
  seconds = []
  for number in range(repeats):
    start = time.perf_counter()
    write_token_store(corpus, _VOCABULARY, scratch / f'tokens{number}')
    seconds.append(time.perf_counter() - start)
  (scratch / 'tokens0').rename(scratch / 'tokens')
  store = TokenStore(scratch / 'tokens')
  rate = len(store.tokens) / 1e6 / statistics.median(seconds)
  print_table(
    'fedfish tokenize',
    ['clients', 'documents', 'tokens', 'on disk', 's', 'million tokens/s'],
    [
      [
        f'{len(store.client_ids):,}',
        f'{store.num_documents:,}',
        f'{len(store.tokens):,}',
        format_bytes(store.tokens.nbytes),
        spread(seconds),
        f'{rate:.1f}',
      ]
    ],
  )


def _read(scratch: pathlib.Path, repeats: int) -> None:
  """Prints what rows take."""
  corpus = GroupedCorpus(scratch / 'corpus')
  store = TokenStore(scratch / 'tokens')
  options = dict(tokenizer=load_tokenizer(_VOCABULARY), sequence_length=128)

  def cohort(clients, round_num):
    for client_id in cohorts.draw_cohort(
      corpus.client_ids,
      seed=1,
      round_num=round_num,
      cohort_size=_COHORT_SIZE,
    ):
      clients.training_sequences(
        client_id, shuffle_seed=1, round_num=round_num, max_sequences=_NUM_ROWS
      )

  def one_client(clients, round_num):
    clients.training_sequences(
      _MERGED, shuffle_seed=1, round_num=round_num, max_sequences=_NUM_ROWS
    )

  stored = StoredSequences(store, **options)
  # Rows are read again in each round, as those of a large corpus are.
  client_sequences._CACHE_BYTES = 0
  merge = Merge(
    num_clients=1, partition_seed=1, split_seed=1, held_out_fraction=0.0
  )
  rows = []
  for name, read, on_demand, from_store in (
    (
      f'cohort of {_COHORT_SIZE} clients',
      cohort,
      ClientSequences(corpus, **options),
      stored,
    ),
    (
      f'{_NUM_ROWS} rows of one client of all texts',
      one_client,
      ClientSequences(_OneClient(corpus), **options),
      MergedClients(store, stored, merge),
    ),
  ):
    one = _seconds(read, on_demand, repeats)
    other = _seconds(read, from_store, repeats)
    ratio = statistics.median(one) / statistics.median(other)
    rows.append(
      [name, spread(one, '.3f'), spread(other, '.3f'), f'{ratio:.0f}']
    )
  print_table(
    'rows of a round: median (smallest-largest)',
    ['', 'on demand, s', 'from the store, s', 'times faster'],
    rows,
  )


class _OneClient:
  """A corpus whose only client has all examples, in memory."""

  def __init__(self, corpus: GroupedCorpus):
    self._examples = [x for _, found in corpus.stream() for x in found]

  def examples(self, client_id: bytes) -> list[dict[str, bytes]]:
    return self._examples


def _seconds(read: Callable, rows: object, repeats: int) -> list[float]:
  seconds = []
  for round_num in range(1, repeats + 1):
    start = time.perf_counter()
    read(rows, round_num)
    seconds.append(time.perf_counter() - start)
  return seconds


def main() -> None:
  """Measures and prints the tables."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--repeats', type=int, default=3)
  arguments = parser.parse_args()
  print(f'{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}', flush=True)
  with tempfile.TemporaryDirectory() as directory:
    _write(pathlib.Path(directory), arguments.repeats)
    _read(pathlib.Path(directory), arguments.repeats)


if __name__ == '__main__':
  main()
