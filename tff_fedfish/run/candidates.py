"""Models that a client is given in a round: its own last one and others.

The server's part of FedFomo: it chooses from the models that clients uploaded
in the round before, see `fed_fomo.choose_downloads`.
"""

import collections
import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.methods import fed_fomo
from tff_fedfish.methods.parts import Downloads
from tff_fedfish.run import tensor_files
from tff_fedfish.run.client_state import ClientStates

if TYPE_CHECKING:
  import tensorflow as tf

Specs = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and name of the dtype, of each tensor of a slot."""

_MODEL, _AFFINITY = 'model', 'affinity'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidates:
  """Models in files of client states; can be sent to workers."""

  specs: Specs
  """Shapes and dtypes of a model's tensors."""
  models: tuple[tuple[int, str], ...] = ()
  """Position of a client among all, and the file with its model."""

  def dataset(self) -> 'tf.data.Dataset':
    """Returns a dataset of <position, weights>; one model is in memory."""
    # Late: commands that only name a cohort answer at once.
    import tensorflow as tf

    signature = collections.OrderedDict(
      position=tf.TensorSpec([], tf.int32),
      weights=tuple(tf.TensorSpec(*spec) for spec in self.specs),
    )
    return tf.data.Dataset.from_generator(
      self._models, output_signature=signature
    )

  def _models(self):
    names = [tensor_name(_MODEL, i) for i in range(len(self.specs))]
    for position, path in self.models:
      tensors = tensor_files.read(path, names)
      weights = tuple(
        np.asarray(tensors[name], dtype)
        for name, (_, dtype) in zip(names, self.specs, strict=True)
      )
      yield collections.OrderedDict(
        position=np.int32(position), weights=weights
      )


def candidates_of(
  states: ClientStates,
  downloads: Downloads,
  slots: Mapping[str, Specs],
  client_id: bytes,
  *,
  positions: Mapping[bytes, int],
  round_num: int,
  cohort_seed: int,
) -> Candidates:
  """Returns the candidates of a client in a round.

  Args:
    states: What clients kept.
    downloads: How models are chosen.
    slots: Specs of the tensors of each slot.
    client_id: The client. In the first round that it takes part in, it has no
      candidates.
    positions: Position, from 0, of every client that may take part.
    round_num: The round, counted from 1.
    cohort_seed: Seed of the choice, together with round and client.

  Raises:
    UserError: If a file is damaged.
  """
  candidates = Candidates(specs=slots[_MODEL])
  own_path = states.path_for(client_id, round_num)
  if own_path is None:
    return candidates
  own = positions[client_id]
  clients = {
    positions[other]: other
    for other in states.clients_of(round_num - 1)
    if other in positions
  }
  name = tensor_name(_AFFINITY, 0)
  chosen = fed_fomo.choose_downloads(
    tensor_files.read(own_path, [name])[name],
    sorted(clients.keys() - {own}),
    downloads,
    round_num=round_num,
    generator=randomness.generator(
      'downloads', cohort_seed, round_num, client_id
    ),
  )
  clients[own] = client_id
  models = (
    (n, os.fspath(states.path_for(clients[n], round_num)))
    for n in [own, *chosen]
  )
  return dataclasses.replace(candidates, models=tuple(models))


def tensor_name(slot: str, index: int) -> str:
  """Returns the name of a slot's tensor in a client's file."""
  return f'{slot}/{index}'
