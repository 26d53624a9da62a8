"""Corpora and the vocabulary that ship with the project.

See NOTICE for licenses, and each directory's README.md for what it holds.
"""

import os
import pathlib

_DIRECTORY = pathlib.Path(__file__).parent


def debian_descriptions() -> pathlib.Path:
  """Returns the directory of Debian's package descriptions.

  Returns:
    A directory with `c4-train.*.json.gz` and `c4-validation.*.json.gz`, shards
    in the layout of C4: JSON lines of text, timestamp and url.
  """
  return _DIRECTORY / 'debian_descriptions'


def sotu_by_president() -> pathlib.Path:
  """Returns the directory of the State of the Union addresses.

  Returns:
    A directory with `sotu.json.gz`: JSON lines of text, timestamp, url, author
    and party.
  """
  return _DIRECTORY / 'sotu_by_president'


def demo_vocabulary() -> pathlib.Path:
  """Returns the directory of the demo's vocabulary of 2,048 pieces."""
  return _DIRECTORY / 'demo_vocabulary'


def vocabulary_path(vocabulary: str | os.PathLike) -> pathlib.Path:
  """Returns the directory of the vocabulary 'demo'; else the path as it is."""
  if vocabulary == 'demo':
    return demo_vocabulary()
  return pathlib.Path(vocabulary)
