"""Settings of TCT, and the sizes that follow from them without TensorFlow."""

import dataclasses
import math

from models.layers import layers_of
from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.fields import number
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import FeatureSizes, ServerShapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class TctSettings(Method):
  """Settings that all phases of TCT have; by itself it trains as FedAvg."""

  title = 'TCT'
  source = (
    'Yu et al. (2022), "TCT: Convexifying federated learning using '
    'bootstrapped neural tangent kernels"'
  )

  num_bootstrap_rounds: int = number(100, at_least=0, below=10**8)
  """T1, rounds of FedAvg before the linearization, >= 0. One more round
  follows, in which clients compute features; all further rounds are convex."""
  num_features: int = number(100_000, at_least=1)
  """p, entries of the gradient of the first logit that are features of an
  image, >= 1; all of them where there are fewer."""
  num_convex_steps: int = number(500, at_least=1)
  """M, full gradient steps of a client in a convex round, >= 1."""
  convex_learning_rate: float = number(5e-5, above=0)
  """eta, the step size of the convex rounds, > 0."""
  max_gram_rows: int = number(8192, at_least=0)
  """Rows of a client up to which it takes the steps of a round at once, in the
  eigenbasis of the Gram matrix of its rows, which it keeps. A client with more
  rows takes them one by one; with 0 all clients do."""


def num_candidates(shape) -> int:
  """Returns the weights of an `ImageModelConfig` that reach the first logit."""
  *_, head = layers_of(shape)
  return num_parameters(shape) - (head.fan_out - 1) * head.num_rows


def feature_sizes(config) -> FeatureSizes:
  """Returns p and the limit of the Gram matrices."""
  size = num_candidates(config.model_shape())
  return FeatureSizes(
    min(config.algorithm.num_features, size), config.algorithm.max_gram_rows
  )


def convex_shapes(config) -> ServerShapes:
  """Returns those of V and its bias, and of the network with mean and std."""
  network, shape = weight_shapes(config.model_shape()), config.model_shape()
  size, _ = feature_sizes(config)
  return ServerShapes(
    {
      'tct/kernel': (size, shape.num_classes),
      'tct/bias': (shape.num_classes,),
    },
    network | {'tct/mean': (size,), 'tct/std': (size,)},
  )


def convex_models(config) -> float:
  """Returns the size of V, in models."""
  shapes = convex_shapes(config).trainable.values()
  return sum(map(math.prod, shapes)) / num_parameters(config.model_shape())
