"""Stored tensors of clients, as the inputs of a round's clients."""

import collections
import dataclasses
import functools
import math
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.run import candidates, tensor_files
from tff_fedfish.run.candidates import Specs, tensor_name
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.store import RoundWriter

if typing.TYPE_CHECKING:
  import tensorflow as tf


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

    datasets = collections.OrderedDict()
    tensors = {} if self.path is None else tensor_files.read(self.path)
    for slot, specs in self.slots:
      if self.path is None:
        # No rows, so nothing of a model's size is allocated.
        datasets[slot] = tf.data.Dataset.from_tensor_slices(
          tuple(tf.zeros((0, *shape), dtype) for shape, dtype in specs)
        )
        continue
      datasets[slot] = tf.data.Dataset.from_tensors(
        tuple(
          tensors[tensor_name(slot, i)].astype(dtype, copy=False)
          for i, (_, dtype) in enumerate(specs)
        )
      )
    return datasets


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientInputs:
  """Client states, and what follows from them for the clients of a round."""

  config: TrainConfig
  process: Any
  """Its learning process."""
  states: ClientStates
  participating: Sequence[bytes]
  """Clients that may take part, in their order."""

  @functools.cached_property
  def slots(self) -> tuple[tuple[str, Specs], ...]:
    """Slots of the process; () if its clients keep nothing."""
    return tuple(
      (slot, tuple((tuple(s.shape), s.dtype.name) for s in specs))
      for slot, specs in getattr(self.process, 'kept_specs', {}).items()
    )

  def inputs_of(self, client_id: bytes, round_num: int) -> dict[str, Any]:
    """Returns a `TrainingClient`'s `kept`, and `candidates` if it is given any.

    Raises:
      UserError: If a file is damaged, or of another model or method.
    """
    kept = KeptTensors(self.slots)
    path = self.states.path_for(client_id, round_num)
    if path is not None:
      found = tensor_files.shapes(path)
      tensor_files.require_shapes(path, found, self._shapes)
      kept = KeptTensors(self.slots, os.fspath(path))
    personal = self.config.method.personal(self.config)
    if personal is None or personal.downloads is None:
      return {'kept': kept}
    chosen = candidates.candidates_of(
      self.states,
      personal.downloads,
      dict(self.slots),
      client_id,
      positions=self._positions,
      round_num=round_num,
      cohort_seed=self.config.seeds.cohort_seed,
    )
    return {'kept': kept, 'candidates': chosen}

  @functools.cached_property
  def _shapes(self):
    return {
      tensor_name(slot, i): shape
      for slot, specs in self.slots
      for i, (shape, _) in enumerate(specs)
    }

  @functools.cached_property
  def _positions(self):
    return {client_id: n for n, client_id in enumerate(self.participating)}


def num_bytes(slots: Sequence[tuple[str, Specs]]) -> int:
  """Returns the size of a client's tensors."""
  return sum(
    math.prod(shape) * np.dtype(dtype).itemsize
    for _, specs in slots
    for shape, dtype in specs
  )


def output_writer(
  writer: RoundWriter, client_ids: Sequence[bytes]
) -> Callable[[int, Any], None]:
  """Returns a `RoundOptions.on_client_output` that writes client outputs.

  Outputs are as `rounds.kept.client_output` makes them, or None to take one
  back; tensors are named SLOT/0, SLOT/1, ... An output that is not valid is not
  written: the client keeps what it had. Clients are those of the cohort, in its
  order.
  """

  def on_client_output(index: int, output: Mapping[str, Any] | None) -> None:
    if output is None:
      writer.take_back(client_ids[index])
    elif output['is_valid']:
      tensors = {
        tensor_name(slot, i): np.asarray(tensor)
        for slot, arrays in output.items()
        if slot != 'is_valid'
        for i, tensor in enumerate(arrays)
      }
      writer.add_client(index, client_ids[index], tensors)

  return on_client_output
