"""Interface that corpora of text and of images share."""

from collections.abc import Sequence
from typing import Protocol

from tff_fedfish.data.manifest import Manifest


class Corpus(Protocol):
  """The examples of many clients: a `GroupedCorpus`, or `ImageClients`."""

  client_ids: Sequence[bytes]
  """All clients, held-out ones included, sorted."""
  held_out: Sequence[bytes]
  """Clients that the corpus's own split holds out of training; () where it has
  none."""
  manifest: Manifest | None
  """None with images."""
  row_name: str
  """Name of the rows that a client trains on: 'sequences' or 'images'."""

  @property
  def fingerprint(self) -> str:
    """SHA-256 of the clients and their sizes, in hexadecimal."""
