"""A corpus of given letters, grouped and tokenized, for several tests."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grouping_jobs import group_lines

from tff_fedfish import files
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.token_store import TokenStore
from tff_fedfish.data.tokenize_corpus import write_token_store
from tff_fedfish.data.tokenizers import (
  Tokenizer,
  WordPieceTokenizer,
  load_tokenizer,
)

# Letter a is piece 3. The character has no piece, not even an unknown one.
PIECES = ('[PAD]', '[UNK]', '[END]', *'abcdefghij')
NOTHING = '\u200b'


def letter_tokenizer() -> WordPieceTokenizer:
  """Returns the tokenizer of the letters a to j."""
  return WordPieceTokenizer('\n'.join(PIECES).encode(), 'vocab.txt')


def describe_again(store: pathlib.Path, **changes) -> None:
  """Changes values of token_store.json, which keeps its SHA-256."""
  path = store / 'token_store.json'
  value = json.loads(path.read_text())
  del value['sha256']
  files.write_json(path, files.with_hash(value | changes))


class Stored(NamedTuple):
  """A corpus in both forms."""

  corpus: GroupedCorpus
  store: TokenStore
  tokenizer: Tokenizer


def tokenize(
  directory: pathlib.Path,
  documents: Mapping[str, Sequence[str]],
  pieces: Sequence[str] = PIECES,
  **options,
) -> Stored:
  """Groups and tokenizes a corpus in a directory.

  Args:
    directory: Where to write.
    documents: Letters of each document, by client; '' is a document without
      any.
    pieces: The vocabulary.
    **options: For `group_lines`.
  """
  lines = [
    {
      'text': ' '.join(letters) or NOTHING,
      'url': f'http://{client}/{number:04}',
      'timestamp': f'{number:04}',
    }
    for client, texts in documents.items()
    for number, letters in enumerate(texts)
  ]
  directory.mkdir(exist_ok=True)
  corpus = GroupedCorpus(group_lines(directory, lines, **options))
  vocabulary = directory / 'vocab.txt'
  vocabulary.write_text('\n'.join(pieces))
  write_token_store(corpus, vocabulary, directory / 'tokens')
  store = TokenStore(directory / 'tokens')
  return Stored(corpus, store, load_tokenizer(vocabulary))
