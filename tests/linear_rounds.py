"""Processes of small models, kept by their arguments, and rounds of them."""

import atexit
import functools

import linear_models
import numpy as np

from tff_fedfish.runtime.in_process_context import set_in_process_context


def linear_model():
  """Returns the model of two features that processes have by default."""
  return linear_models.linear_model(2)


def process(build, model=linear_model, **options):
  """Builds a process for our context.

  Building takes seconds; equal arguments share a process, which has no state.

  Args:
    build: The method's builder.
    model: Returns the model.
    **options: Arguments of the builder. The client optimizer is SGD of rate
      0.1, the server optimizer SGD of rate 1, if not given.
  """
  set_in_process_context()
  return _kept(build, model, **options)


@functools.lru_cache(maxsize=16)
def _kept(build, model, **options):
  defaults = dict(
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
  )
  return build(model(), **defaults | options)


# TensorFlow's functions must not live until the interpreter's exit.
atexit.register(_kept.cache_clear)


def flat(tensors):
  """Returns all tensors in one array."""
  return np.concatenate([np.ravel(tensor) for tensor in tensors])


def weights(process, state):
  """Returns the server's trainable weights in one array."""
  return flat(process.get_model_weights(state).trainable)


def trained(process, datasets, num_rounds=1):
  """Returns the weights after some rounds, and the output of the last one."""
  state = process.initialize()
  for _ in range(num_rounds):
    output = process.next(state, datasets)
    state = output.state
  return weights(process, state), output


def datasets(clients, batch_size=2):
  """Returns the batches of clients (x, y)."""
  return [linear_models.batches(x, y, batch_size) for x, y in clients]


def gradient(theta, x, y):
  """Returns the gradient of the linear model, theta = (kernel, bias)."""
  residual = x @ theta[:-1] + theta[-1] - y
  return 2 * np.append(x.T @ residual, residual.sum()) / len(y)
