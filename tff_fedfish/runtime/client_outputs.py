"""Client outputs: values that clients of a round return beside what is summed.

A computation aggregates a struct whose only field is `client_output`. The
aggregation drops it, for any TFF context; this engine also hands it on.
"""

import tensorflow_federated as tff

from tff_fedfish.runtime import tff_internals, values

FIELD = 'client_output'


def find(update_type: tff.Type) -> tuple[range, tff.Type | None]:
  """Finds the client output in an update, the clients' part of a sum.

  Returns:
    (positions among the tensors of the update, type of the output or None).

  Raises:
    ValueError: If there are several.
  """
  found = list(_find(update_type, 0))
  if len(found) > 1:
    raise ValueError(
      f'A computation must have at most one {FIELD!r}, found {len(found)}.'
    )
  return found[0] if found else (range(0), None)


def _find(value_type, first):
  if not isinstance(value_type, tff.StructType):
    return
  for name, element in tff_internals.to_elements(value_type):
    num_tensors = len(values.tensor_types(element))
    if name == FIELD and len(value_type) == 1:
      yield range(first, first + num_tensors), element
    else:
      yield from _find(element, first)
    first += num_tensors
