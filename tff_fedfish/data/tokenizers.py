"""Loads tokenizers from directories and vocabulary files."""

import dataclasses
import hashlib
import os
import pathlib

from tff_fedfish import files
from tff_fedfish.data import tokenizer_json
from tff_fedfish.data.sentencepiece import SentencePieceTokenizer
from tff_fedfish.data.tokenizer import (
  METADATA_FILE,
  SCHEMA_VERSION,
  Tokenizer,
)
from tff_fedfish.data.tokenizer_json import JsonTokenizer
from tff_fedfish.data.wordpiece import WordPieceTokenizer
from tff_fedfish.errors import UserError

WORDPIECE = WordPieceTokenizer.kind
SENTENCEPIECE = SentencePieceTokenizer.kind
TOKENIZER_JSON = JsonTokenizer.kind
_KINDS = {
  kind.kind: kind
  for kind in (WordPieceTokenizer, SentencePieceTokenizer, JsonTokenizer)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Metadata:
  """Facts that are read from `tokenizer.json`; the vocabulary has the rest."""

  schema_version: int = SCHEMA_VERSION
  kind: str
  lower_case: bool
  end_of_text_id: int
  sha256: str


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
  """Loads a tokenizer.

  Args:
    path: A directory that `Tokenizer.save` wrote or that holds a
      `tokenizer.json` of Hugging Face's library, a WordPiece vocabulary file
      (`.txt`, as BERT's), or a SentencePiece model (`.model`, `.model.v1`).

  Raises:
    UserError: If the path is none of these, is damaged, or lacks a special
      piece.
  """
  path = pathlib.Path(path)
  if path.is_file() and path.suffix == '.txt':
    return WordPieceTokenizer(_read(path), str(path))
  if path.is_file() and '.model' in path.suffixes:
    return SentencePieceTokenizer(_read(path), str(path))
  if (path / METADATA_FILE).is_file():
    return _load_directory(path)
  raise UserError(
    f'A vocabulary must be a directory with {METADATA_FILE}, a WordPiece '
    f'`.txt` file or a SentencePiece `.model` file, but {str(path)!r} '
    f'{"is neither" if path.exists() else "does not exist"}. Name one (of '
    '`train`: `--config.data.vocabulary`), or make one with `fedfish tokenizer '
    'train`.'
  )


def _load_directory(path: pathlib.Path) -> Tokenizer:
  data = _read(path / METADATA_FILE)
  with _explained(path / METADATA_FILE):
    contents = files.parse_json(data)
    is_of_library = isinstance(contents, dict) and 'model' in contents
    if not is_of_library:
      metadata = files.from_json_object(contents, schema=_Metadata)
      if metadata.kind not in _KINDS:
        raise ValueError(f'its `kind` is {metadata.kind!r}')
  if is_of_library:
    end_of_text = tokenizer_json.configured_end_of_text(path)
    tokenizer = JsonTokenizer(data, str(path / METADATA_FILE), end_of_text)
    # At the start, not at the first text in training that it cannot express.
    tokenizer.encode_batch([tokenizer_json.TRIAL_TEXT])
    return tokenizer
  file = path / _KINDS[metadata.kind].vocabulary_file
  vocabulary = _read(file)
  if hashlib.sha256(vocabulary).hexdigest() != metadata.sha256:
    raise UserError(
      f'{str(file)!r} must have the sha256 that {METADATA_FILE} states, '
      f'{metadata.sha256[:16]}, but has another: it was changed or damaged. '
      'Copy the whole directory again.'
    )
  if metadata.kind == WORDPIECE:
    return WordPieceTokenizer(vocabulary, str(file), metadata.lower_case)
  if metadata.kind == SENTENCEPIECE:
    return SentencePieceTokenizer(vocabulary, str(file))
  return JsonTokenizer(vocabulary, str(file), metadata.end_of_text_id)


def _read(path: pathlib.Path) -> bytes:
  with _explained(path):
    return path.read_bytes()


def _explained(path: pathlib.Path):
  return files.explained(
    path, 'a vocabulary', 'Copy the whole directory again, or name another one.'
  )
