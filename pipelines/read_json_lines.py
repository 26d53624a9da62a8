"""Reads JSON objects, one to a line."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pipelines.read_lines import EXCERPT_BYTES, split_lines
from pipelines.source import Drop

_raw_decode = json.JSONDecoder().raw_decode


def read_json_lines(
  chunks: Iterable[bytes],
  max_line_bytes: int,
  max_content_bytes: int | None = None,
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
  """Yields (1-based line number, object or why it is dropped).

  Args:
    chunks: The pieces of the file. If they end with a `Drop`, so does this.
    max_line_bytes: Longer lines are skipped: document_too_large.
    max_content_bytes: So are those of more content; see `split_lines`.

  Returns:
    An iterator; in its `Drop`s are, besides those of the pieces,
    document_too_large and those of `parse_line`.
  """
  for line_num, line in split_lines(chunks, max_line_bytes, max_content_bytes):
    if isinstance(line, Drop):
      yield line_num, line
      continue
    try:
      value = parse_line(line)
    except Drop as drop:
      value = drop
    yield line_num, value


def parse_line(line: bytes) -> dict[str, Any]:
  """Returns the object that a line of JSON holds.

  Raises:
    Drop: empty_line, invalid_utf8, malformed_json or not_an_object.
  """
  try:
    # As json.loads, which takes longer to pass over white space around.
    text = line.decode().strip(' \t\r\n')
    value, end = _raw_decode(text)
    if end != len(text):
      raise ValueError('something follows the object')
  except (ValueError, RecursionError) as error:
    raise _why_malformed(line, error) from error
  if not isinstance(value, dict):
    raise Drop('not_an_object', excerpt=line[:EXCERPT_BYTES])
  return value


def _why_malformed(line: bytes, error: Exception) -> Drop:
  excerpt = line[:EXCERPT_BYTES]
  if not line.strip():
    return Drop('empty_line')
  if isinstance(error, UnicodeDecodeError):
    return Drop('invalid_utf8', excerpt=excerpt)
  return Drop('malformed_json', excerpt=excerpt)
