"""Finds a client by the name that a user typed."""

import bisect
import difflib

from tff_fedfish.data.client_id_text import (
  client_id_to_text,
  text_to_client_id,
)
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.errors import UserError

# Ids, around its place in their order, that an unknown one is compared with.
_MAX_CANDIDATES = 2_000
_MAX_NAMED = 3


def find_client(corpus: GroupedCorpus, text: str) -> bytes:
  """Returns the id of a client.

  Args:
    corpus: The corpus.
    text: The id as `fedfish inspect` and per_client.csv write it, with %XX for
      bytes that are not text.

  Raises:
    UserError: If it is no client id, or the corpus has no such client; names
      the nearest ones.
  """
  try:
    client_id = text_to_client_id(text)
  except ValueError as error:
    raise UserError(
      f'`--client` must be a client id, in which a percent sign is %25, found '
      f'{text!r}. Copy it from `fedfish inspect` or per_client.csv.'
    ) from error
  if client_id in corpus.client_ids:
    return client_id
  nearest = ', '.join(map(repr, _nearest(corpus, client_id)))
  raise UserError(
    f'`--client` must be one of the {len(corpus.client_ids):,} clients of '
    f'{str(corpus.directory)!r}, but {text!r} is none of them. '
    + (f'The nearest are {nearest}.' if nearest else 'Name another corpus.')
  )


def _nearest(corpus, client_id) -> list[str]:
  client_ids = corpus.client_ids
  place = bisect.bisect_left(client_ids, client_id)
  start = max(place - _MAX_CANDIDATES // 2, 0)
  candidates = [
    client_id_to_text(candidate)
    for candidate in client_ids[start : start + _MAX_CANDIDATES]
  ]
  found = difflib.get_close_matches(
    client_id_to_text(client_id), candidates, n=_MAX_NAMED
  )
  # If nothing looks alike, those beside it in the order.
  place -= start
  return found or candidates[max(place - 1, 0) : place + _MAX_NAMED - 1]
