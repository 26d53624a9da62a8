"""Client inputs besides the batches, and outputs besides the update.

A client that keeps tensors between rounds is given them as datasets of one
element, or of none when it comes for the first time. What it keeps after the
round is its client output, see `runtime/client_outputs.py`.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.rounds.client import KeptSlot, Structure
from tff_fedfish.runtime import client_outputs
from tff_fedfish.runtime.client_data import (
  CANDIDATES,
  LOCAL_PRIVACY,
  ROUNDING_SEED,
  VALIDATION,
)


def trainable_specs(
  functional_model: tff.learning.models.FunctionalModel,
) -> Structure:
  """Returns `tf.TensorSpec`s of a model's trainable weights."""
  return tf.nest.map_structure(
    lambda weight: tf.TensorSpec(weight.shape, weight.dtype),
    tuple(functional_model.initial_weights[0]),
  )


def kept_specs(
  slots: Mapping[str, KeptSlot],
  functional_model: tff.learning.models.FunctionalModel,
) -> collections.OrderedDict[str, tuple[tf.TensorSpec, ...]]:
  """Returns the flat tensors of each slot, in the order of `tf.nest`."""
  trainable = trainable_specs(functional_model)
  specs = collections.OrderedDict()
  for name, slot in slots.items():
    graph = tf.function(slot.initial).get_concrete_function(trainable)
    specs[name] = tuple(
      tf.TensorSpec(tensor.shape, tensor.dtype)
      for tensor in tf.nest.flatten(graph.structured_outputs)
    )
  return specs


def client_data_type(
  functional_model: tff.learning.models.FunctionalModel,
  kept: Mapping[str, tuple[tf.TensorSpec, ...]],
  inputs: Sequence[str] = (),
) -> tff.Type:
  """Returns the type of a client's argument.

  Args:
    functional_model: The model.
    kept: As `kept_specs` returns it.
    inputs: Names of further inputs: `VALIDATION`, `CANDIDATES`,
      `LOCAL_PRIVACY` and `ROUNDING_SEED` of `client_data`.

  Returns:
    The sequence of batches B*. With slots <data=B*, state=<SLOT=T*, ...>>, T
    the tuple of a slot's flat tensors: a sequence of one element, empty for a
    client that takes part for the first time. Further inputs follow them; with
    inputs only it is <data=B*, INPUT=T*, ...>.
  """
  data = _sequence_of(functional_model.input_spec)
  if not kept and not inputs:
    return data
  specs = {
    VALIDATION: functional_model.input_spec,
    CANDIDATES: collections.OrderedDict(
      position=tf.TensorSpec([], tf.int32),
      weights=trainable_specs(functional_model),
    ),
    LOCAL_PRIVACY: collections.OrderedDict(
      noise_seed=tf.TensorSpec([2], tf.int32),
      num_examples=tf.TensorSpec([], tf.int64),
      num_unobserved=tf.TensorSpec([], tf.int64),
    ),
    ROUNDING_SEED: tf.TensorSpec([2], tf.int32),
  }
  parts = collections.OrderedDict(data=data)
  if kept:
    parts['state'] = collections.OrderedDict(
      (name, _sequence_of(slot)) for name, slot in kept.items()
    )
  # TFF's client work takes sequences only.
  parts |= {name: _sequence_of(specs[name]) for name in inputs}
  return tff.to_type(parts)


def split_client_data(
  client_data: Any, slots: Mapping[str, KeptSlot], trainable: Structure
) -> tuple[tf.data.Dataset, dict[str, Structure]]:
  """Returns a client's batches, and its kept structures by slot."""
  if not slots:
    is_struct = isinstance(client_data, Mapping)
    return (client_data['data'] if is_struct else client_data), {}
  kept = {}
  for name, slot in slots.items():
    initial = tf.nest.map_structure(
      tf.convert_to_tensor, slot.initial(trainable)
    )
    found = _first_or(
      client_data['state'][name], tuple(tf.nest.flatten(initial))
    )
    kept[name] = tf.nest.pack_sequence_as(initial, found)
  return client_data['data'], kept


def client_output(
  kept: Mapping[str, Structure], is_valid: tf.Tensor
) -> collections.OrderedDict:
  """Returns what a client returns: int32 `is_valid`, flat tensors by slot.

  Where the scalar bool `is_valid` is false, the client keeps what it had.
  """
  return collections.OrderedDict(
    is_valid=tf.cast(is_valid, tf.int32),
    **{name: tuple(tf.nest.flatten(value)) for name, value in kept.items()},
  )


def send_client_output(output: tff.Value) -> tff.Value:
  """Marks a value at the clients as their output.

  Args:
    output: As `client_output` makes it, placed at the clients.

  Returns:
    Int32 at the server, how many clients sent one.
  """

  @tff.tensorflow.computation(output.type_signature.member)
  def mark(value):
    return collections.OrderedDict([(client_outputs.FIELD, value)])

  marked_type = mark.type_signature.result
  accumulate = tff.tensorflow.computation(
    lambda count, unused_value: count + 1, (tf.int32, marked_type)
  )
  merge = tff.tensorflow.computation(
    lambda first, second: first + second, (tf.int32, tf.int32)
  )
  report = tff.tensorflow.computation(lambda count: count, tf.int32)
  return tff.federated_aggregate(
    tff.federated_map(mark, output),
    zero=0,
    accumulate=accumulate,
    merge=merge,
    report=report,
  )


def _sequence_of(spec):
  return tff.SequenceType(tff.types.tensorflow_to_type(spec))


def _first_or(dataset, initial):
  """Returns the dataset's element, or `initial` if it has none."""
  found = initial
  for element in iter(dataset):
    found = tuple(tf.nest.flatten(element))
  return found
