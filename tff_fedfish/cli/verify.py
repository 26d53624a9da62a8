"""Read a grouped corpus, its tokens, or a run, once, and check every byte.

Of a corpus also every record and count; of a run its checkpoints, whether they
were made with its config and vocabulary and, where its clients keep tensors,
those of the last checkpoint. Stops at the first thing that is damaged and names
it.

Examples:
  fedfish verify corpora/debian
  fedfish verify corpora/debian_tokens
  fedfish verify runs/mine
"""

import argparse
import contextlib
import pathlib
from collections.abc import Callable, Iterator

SUMMARY = 'check that a grouped corpus, tokens or a run are whole'

_PROGRESS_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish verify`."""
  parser.add_argument(
    'directory',
    metavar='DIR',
    help='a directory that `fedfish group`, `tokenize` or `train` wrote',
  )


def run(arguments: argparse.Namespace) -> int:
  """Checks a directory, and prints what was checked."""
  from tff_fedfish.data.token_store import is_token_store

  directory = arguments.directory
  if (pathlib.Path(directory) / 'config.json').exists():
    counts = _verify_run(directory)
  elif is_token_store(directory):
    counts = _verify_tokens(directory)
  else:
    counts = _verify_corpus(directory)
  print(f'{directory}: OK ({counts})')
  return 0


def _verify_corpus(directory: str) -> str:
  from tff_fedfish.data.manifest import read_manifest
  from tff_fedfish.data.verify import verify_corpus
  from tff_fedfish.printing import count

  shards = read_manifest(directory).shards
  with _progress(sum(shard.num_bytes for shard in shards)) as on_bytes:
    checked = verify_corpus(directory, on_bytes)
  nouns = ('shard', 'group', 'record', 'example', 'word', 'byte')
  counts = (count(getattr(checked, f'num_{noun}s'), noun) for noun in nouns)
  return ', '.join(counts)


def _verify_tokens(directory: str) -> str:
  from tff_fedfish.data import token_store
  from tff_fedfish.printing import count

  files = token_store.read_description(directory).files
  with _progress(sum(file.num_bytes for file in files.values())) as on_bytes:
    store = token_store.verify(directory, on_bytes)
  return (
    f'{count(len(store.client_ids), "client")}, '
    f'{count(store.num_documents, "document")}, '
    f'{count(len(store.tokens), "token")}'
  )


def _verify_run(directory: str) -> str:
  from tff_fedfish.printing import count, format_bytes
  from tff_fedfish.progress import Progress
  from tff_fedfish.run import verify

  with Progress('verify', verify.num_steps(directory), unit='file') as progress:
    found = verify.verify_run(directory, on_step=progress.advance)
  return (
    f'{count(found.num_checkpoints, "checkpoint")}, '
    f'{count(found.num_client_states, "client state")}, '
    f'{format_bytes(found.num_bytes)}'
  )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
  """Shows the progress of reading bytes; yields a function to report them."""
  from tff_fedfish.progress import Progress

  num_bytes = 0
  with Progress('verify', total // _PROGRESS_BYTES, unit='MiB') as progress:

    def on_bytes(size: int) -> None:
      nonlocal num_bytes
      before, num_bytes = num_bytes, num_bytes + size
      steps = num_bytes // _PROGRESS_BYTES - before // _PROGRESS_BYTES
      if steps:
        progress.advance(steps)

    yield on_bytes
