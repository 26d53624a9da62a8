"""Read a grouped corpus, its tokens, or a run, once, and check every byte.

Of a corpus also every record and count; of a run its checkpoints and, where its
clients keep tensors, those of the last checkpoint. Stops at the first thing
that is damaged and names it.

Example:
  fedfish verify corpora/c4
  fedfish verify corpora/c4_tokens
  fedfish verify runs/moon
"""

import argparse
import pathlib

SUMMARY = 'check that a grouped corpus, tokens or a run are whole'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish verify`."""
  parser.add_argument(
    'directory',
    metavar='DIR',
    help='a directory that `fedfish group`, `tokenize` or `train` wrote',
  )


def run(arguments: argparse.Namespace) -> int:
  """Checks a directory, and prints what was checked."""
  if (pathlib.Path(arguments.directory) / 'config.json').exists():
    return _verify_run(arguments.directory)
  from tff_fedfish.data import token_store

  if token_store.is_token_store(arguments.directory):
    return _verify_tokens(arguments.directory)
  from tff_fedfish.data.manifest import read_manifest
  from tff_fedfish.data.verify import verify_corpus
  from tff_fedfish.printing import count
  from tff_fedfish.progress import Progress

  num_shards = len(read_manifest(arguments.directory).shards)
  with Progress('verify', num_shards, unit='shard') as progress:
    checked = verify_corpus(arguments.directory, on_shard=progress.advance)
  print(
    f'{arguments.directory}: OK ({count(checked.num_shards, "shard")}, '
    f'{count(checked.num_groups, "group")} in '
    f'{count(checked.num_records, "record")}, '
    f'{count(checked.num_examples, "example")}, '
    f'{count(checked.num_words, "word")}, {count(checked.num_bytes, "byte")})'
  )
  return 0


def _verify_run(directory):
  from tff_fedfish.printing import count, format_bytes
  from tff_fedfish.progress import Progress
  from tff_fedfish.run import verify

  with Progress('verify', verify.num_steps(directory), unit='file') as progress:
    found = verify.verify_run(directory, on_step=progress.advance)
  print(
    f'{directory}: OK ({count(found.num_checkpoints, "checkpoint")}, '
    f'{count(found.num_client_states, "client state")}, '
    f'{format_bytes(found.num_bytes)})'
  )
  return 0


def _verify_tokens(directory):
  from tff_fedfish.data import token_store
  from tff_fedfish.printing import count
  from tff_fedfish.progress import Progress

  num_files = len(token_store.read_description(directory).files)
  with Progress('verify', num_files, unit='file') as progress:
    store = token_store.verify(directory, on_file=progress.advance)
  print(
    f'{directory}: OK ({count(len(store.client_ids), "client")}, '
    f'{count(store.num_documents, "document")}, '
    f'{count(len(store.tokens), "token")})'
  )
  return 0
