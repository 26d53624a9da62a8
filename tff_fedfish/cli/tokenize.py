r"""Tokenize a grouped corpus once, for all runs that read it.

Examples:
  fedfish tokenize corpora/debian --vocabulary demo
  fedfish tokenize corpora/debian --vocabulary corpora/debian_vocabulary \
      --output corpora/debian_own_tokens
  fedfish train --config demo --workdir runs/debian \
      --config.data.directory=corpora/debian_tokens

A run on the tokens and a run on the corpus are the same run. Merged clients
(partition.scheme 'merge') require tokens; for clients of 65,536 tokens and more
they save tokenizing again in every round.
"""

import argparse
import os
import shlex
import sys

from tff_fedfish.errors import UserError
from tff_fedfish.files import require_usable_output

SUMMARY = 'tokenize a grouped corpus once, to disk'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish tokenize`."""
  parser.add_argument(
    'corpus', metavar='DIR', help='a directory that `fedfish group` wrote'
  )
  parser.add_argument(
    '--vocabulary',
    required=True,
    metavar='PATH',
    help="the runs' vocabulary, or `demo`, the one that ships",
  )
  parser.add_argument(
    '--output',
    metavar='DIR',
    help='new or empty directory; takes 2 bytes per token, or 4 with more than '
    '65,536 pieces (default: DIR_tokens, beside the corpus)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Writes a token store and prints its sizes."""
  from tff_fedfish import corpora
  from tff_fedfish.data.grouped_corpus import GroupedCorpus
  from tff_fedfish.data.token_store import TokenStore
  from tff_fedfish.data.tokenize_corpus import leftovers, write_token_store
  from tff_fedfish.printing import count, format_bytes
  from tff_fedfish.progress import Progress
  from tff_fedfish.training.interruption import abandonable

  output = require_usable_output(_output(arguments), '--output')
  corpus = GroupedCorpus(arguments.corpus)
  if left := leftovers(output):
    print(
      'fedfish: another job is writing the same tokens, or one was killed and '
      f'left: {shlex.join(left)}. Remove it if no job runs.',
      file=sys.stderr,
    )

  num_clients = len(corpus.client_ids)
  progress = Progress('tokenize', num_clients, unit='client')
  with abandonable(), progress:
    write_token_store(
      corpus,
      corpora.vocabulary_path(arguments.vocabulary),
      output,
      on_clients=progress.advance,
    )
  store = TokenStore(output)
  print(
    f'{count(num_clients, "client")}, '
    f'{count(store.num_documents, "document")}\n'
    f'{count(len(store.tokens), "token")}, an end of text per document '
    f'included: {format_bytes(store.tokens.nbytes)}\n'
    f'Written to {output}'
  )
  return 0


def _output(arguments: argparse.Namespace) -> str:
  """Returns the directory to write, beside the corpus unless it is named."""
  from tff_fedfish.data import places

  output = arguments.output
  if output is None and not places.is_remote(arguments.corpus):
    # A corpus that is a link has its tokens beside the link.
    return f'{os.path.abspath(arguments.corpus)}_tokens'
  if output is None:
    raise UserError(
      f'`--output` is required for a corpus in a store, {arguments.corpus!r}. '
      'Name a directory on a local disk.'
    )
  if places.is_remote(output):
    raise UserError(
      '`--output` must be a directory on a local disk, as tokens are mapped '
      f'into memory, found {output!r}. Name one.'
    )
  return output
