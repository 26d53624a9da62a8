"""Kept tensors of a client, as the datasets that its process takes."""

import collections
import dataclasses
import math
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_fedfish.run import client_state_files
from tff_fedfish.run.client_state_files import RoundStates
from tff_fedfish.run.client_states import ClientStates

if typing.TYPE_CHECKING:
  import tensorflow as tf

Specs = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and name of the dtype, of each tensor of a slot."""


@dataclasses.dataclass(frozen=True)
class KeptTensors:
  """A client's kept tensors in a file, or none yet; can be sent to workers."""

  slots: tuple[tuple[str, Specs], ...]
  """Name and tensors of each slot, in the order of the process."""
  path: str | None = None
  """None: the client takes part for the first time."""

  def datasets(self) -> 'collections.OrderedDict[str, tf.data.Dataset]':
    """Returns a dataset per slot, of one element or none."""
    # Late: commands that only name a cohort answer at once.
    import tensorflow as tf

    if self.path is None:
      return collections.OrderedDict(
        (slot, _empty(specs)) for slot, specs in self.slots
      )
    tensors = client_state_files.read(self.path)
    return collections.OrderedDict(
      (
        slot,
        tf.data.Dataset.from_tensors(
          tuple(
            tensors[name_of(slot, i)].astype(dtype, copy=False)
            for i, (_, dtype) in enumerate(specs)
          )
        ),
      )
      for slot, specs in self.slots
    )


def slots_of(process: Any) -> tuple[tuple[str, Specs], ...]:
  """Returns the slots of a process; () if its clients keep nothing."""
  return tuple(
    (slot, tuple((tuple(s.shape), s.dtype.name) for s in specs))
    for slot, specs in getattr(process, 'kept_specs', {}).items()
  )


def num_bytes(slots: Sequence[tuple[str, Specs]]) -> int:
  """Returns the size of a client's tensors."""
  return sum(
    math.prod(shape) * np.dtype(dtype).itemsize
    for _, specs in slots
    for shape, dtype in specs
  )


def tensors_of(output: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
  """Returns what is kept of a client's output, by name.

  The output is as `rounds.kept.client_output` makes it.

  Returns:
    Arrays named SLOT/0, SLOT/1, ...; None: the client keeps what it had.
  """
  if not output['is_valid']:
    return None
  return {
    name_of(slot, i): np.asarray(tensor)
    for slot, tensors in output.items()
    if slot != 'is_valid'
    for i, tensor in enumerate(tensors)
  }


def output_writer(
  writer: RoundStates, client_ids: Sequence[bytes]
) -> Callable[[int, Any], None]:
  """Returns a `RoundOptions.on_client_output` that writes what is kept.

  Clients are those of the cohort, in its order; see also `tensors_of`.
  """

  def on_client_output(index, output):
    if output is None:
      writer.take_back(client_ids[index])
    elif (tensors := tensors_of(output)) is not None:
      writer.add(index, client_ids[index], tensors)

  return on_client_output


def find(
  states: ClientStates,
  slots: Sequence[tuple[str, Specs]],
  client_id: bytes,
  before_round: int,
) -> KeptTensors:
  """Returns what a client starts a round with, checked.

  Raises:
    UserError: If its file is damaged, or of another model or method.
  """
  path = states.path_for(client_id, before_round)
  if path is None:
    return KeptTensors(tuple(slots))
  expected = {
    name_of(slot, i): shape
    for slot, specs in slots
    for i, (shape, _) in enumerate(specs)
  }
  client_state_files.require_shapes(client_id, path, expected)
  return KeptTensors(tuple(slots), os.fspath(path))


def _empty(specs):
  import tensorflow as tf

  # No rows, so nothing of a model's size is allocated.
  return tf.data.Dataset.from_tensor_slices(
    tuple(tf.zeros((0, *shape), dtype) for shape, dtype in specs)
  )


def name_of(slot: str, index: int) -> str:
  """Returns the name of a slot's tensor in a client's file."""
  return f'{slot}/{index}'
