"""SQLite databases of clients as TFF writes them."""

import contextlib
import os
import sqlite3
from collections.abc import Iterable
from typing import Any

import numpy as np

from tff_fedfish.data.protos import messages


def encode(**features: Any) -> bytes:
  """Returns a serialized `tf.train.Example` of texts, floats or integers."""
  example = messages().Example()
  for name, value in features.items():
    feature = example.features.feature[name]
    if isinstance(value, str | bytes):
      data = value.encode() if isinstance(value, str) else value
      feature.bytes_list.value.append(data)
      continue
    values = np.asarray(value).ravel().tolist()
    kind = 'float_list' if isinstance(values[0], float) else 'int64_list'
    getattr(feature, kind).value.extend(values)
  return example.SerializeToString(deterministic=True)


def write(
  path: str | os.PathLike, rows: Iterable[tuple[Any, Any, Any]]
) -> None:
  """Writes rows of (split name, client id, serialized example)."""
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute(
      'CREATE TABLE examples (split_name TEXT NOT NULL, '
      'client_id TEXT, serialized_example_proto BLOB)'
    )
    connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
    connection.commit()
