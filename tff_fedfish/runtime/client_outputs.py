"""Client outputs: values that clients of a round return beside what is summed.

A computation marks them by aggregating a struct whose only field is
`client_output`. The aggregation drops it, so that any TFF context runs the
computation; this engine also hands the struct on, client by client.
"""

import tensorflow_federated as tff

from tff_fedfish.runtime import tff_internals, values

FIELD = 'client_output'
"""Name of the field."""


def find(update_type: tff.Type) -> tuple[range, tff.Type | None]:
  """Finds the client output in what a client sends.

  Args:
    update_type: Type of the aggregated part of a client's result.

  Returns:
    (positions among the type's tensors, type). An empty range and None where
    there is no client output.

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
  elements = tff_internals.to_elements(value_type)
  if [name for name, _ in elements] == [FIELD]:
    num_tensors = len(values.tensor_types(value_type))
    yield range(first, first + num_tensors), elements[0][1]
    return
  for _, element in elements:
    yield from _find(element, first)
    first += len(values.tensor_types(element))
