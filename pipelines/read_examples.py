"""Reads the examples of TFRecord files, as far as they can be read."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from google.protobuf import message

from pipelines.source import Drop
from tff_fedfish.data import records
from tff_fedfish.data.protos import messages


def read_payloads(
  stream: BinaryIO, max_bytes: int
) -> Iterator[tuple[int, bytes | Drop]]:
  """Yields (1-based number, payload or why it is dropped) of TFRecords.

  Raises:
    Drop: truncated_file or corrupt_file, behind all that can be read.
  """
  frames = records.read_frames(stream, max_bytes)
  try:
    for num, (_, num_bytes, payload) in enumerate(frames, start=1):
      is_whole = num_bytes == len(payload)
      yield (
        num,
        payload if is_whole else Drop('document_too_large', excerpt=payload),
      )
  except records.BrokenFrame as broken:
    reason = 'truncated_file' if broken.is_cut_off else 'corrupt_file'
    raise Drop(reason, damage=True) from broken


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
    raise Drop('malformed_example') from error
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8') from error


def _value(feature: message.Message) -> Any:
  kind = feature.WhichOneof('kind')
  values = getattr(feature, kind).value if kind else ()
  if kind == 'bytes_list':
    values = [value.decode() for value in values]
  if len(values) == 1:
    return values[0]
  return list(values) or None
