"""Turns a model into the computation that makes a process's first weights."""

import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec

Model = tff.learning.models.FunctionalModel | ModelSpec


def build_initial_weights(
  model: Model,
) -> tuple[tff.learning.models.FunctionalModel, tff.Computation]:
  """Returns the functional model and a computation of its initial weights.

  Args:
    model: A FunctionalModel, whose `initial_weights` become constants of the
      graph, or a ModelSpec, whose weights are drawn inside it.

  Returns:
    (functional model, no-argument computation returning
    `tff.learning.models.ModelWeights` of tuples).

  Raises:
    TypeError: If `model` is neither, or its weights are not flat sequences.
  """
  if isinstance(model, ModelSpec):
    functional_model = model.functional_model
    draw = model.draw_initial_weights
  elif isinstance(model, tff.learning.models.FunctionalModel):
    functional_model = model

    def draw():
      return tf.nest.map_structure(
        tf.convert_to_tensor, functional_model.initial_weights
      )

  else:
    raise TypeError(
      '`model` must be a tff.learning.models.FunctionalModel or a '
      f'tff_fedfish.ModelSpec, found {type(model).__name__}.'
    )
  for part in functional_model.initial_weights:
    if not isinstance(part, list | tuple) or any(
      isinstance(weight, list | tuple | dict) for weight in part
    ):
      raise TypeError(
        'The initial weights of `model` must be two flat sequences of '
        f'weights, found {type(part).__name__}.'
      )

  @tff.tensorflow.computation
  def initial_weights():
    trainable, non_trainable = draw()
    return tff.learning.models.ModelWeights(
      tuple(trainable), tuple(non_trainable)
    )

  return functional_model, initial_weights
