"""Reads the examples of TFRecord files, as far as they can be read."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from google.protobuf import message

from pipelines.source import Drop
from tff_fedfish.data import records
from tff_fedfish.data.protos import messages


def read_examples(
  stream: BinaryIO, max_bytes: int
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
  """Yields (1-based number, features or why they are dropped) of TFRecords."""
  num = 0
  try:
    for _, num_bytes, payload in records.read_frames(stream, max_bytes):
      num += 1
      try:
        if num_bytes > len(payload):
          raise Drop('document_too_large', excerpt=payload)
        value = decode_features(payload)
      except Drop as drop:
        value = drop
      yield num, value
  except records.BrokenFrame as broken:
    reason = 'truncated_file' if broken.is_cut_off else 'corrupt_file'
    yield num + 1, Drop(reason, damage=True, byte=broken.offset)


def decode_features(serialized: bytes) -> dict[str, Any]:
  """Returns the features of a serialized `tf.train.Example`, by name.

  Bytes become text. A feature of several values is a list, one of no value is
  absent.

  Raises:
    Drop: malformed_example if it is none, invalid_utf8 if a feature holds bytes
      that are no text.
  """
  try:
    example = messages().Example.FromString(serialized)
    return {
      name: value
      for name, feature in example.features.feature.items()
      if (value := _value(feature)) is not None
    }
  except message.DecodeError as error:
    raise Drop('malformed_example', excerpt=serialized) from error
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8', excerpt=error.object) from error


def _value(feature: message.Message) -> Any:
  kind = feature.WhichOneof('kind')
  values = getattr(feature, kind).value if kind else ()
  if kind == 'bytes_list':
    values = [value.decode() for value in values]
  if len(values) == 1:
    return values[0]
  return list(values) or None
