"""Turns serialized TensorFlow computations into functions of this process."""

import contextlib
import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_fedfish.runtime import placement, tensorflow_internals
from tff_fedfish.runtime.computation_graph import ComputationGraph


class GraphFunction:
  """TFF `tensorflow` computations as a callable on flat lists of tensors.

  Args and results are flat, in the order of the computation's type; a dataset
  is passed as its variant tensor, so that nothing is serialized.
  """

  def __init__(
    self, proto, then=None, num_passed: int = 0, returned: Sequence[int] = ()
  ):
    """Imports one graph, or two of which the second takes from the first.

    Variables and tables are created in every call, from the arguments if
    need be; where that takes results of the first graph, do not join the two.

    What passes from one to the other never leaves the function, so that
    TensorFlow may reuse its memory for the results.

    Args:
      proto: A TFF computation proto of kind 'tensorflow'.
      then: Another one; its last `num_passed` parameters become the first
        `num_passed` results of `proto`. The function then takes the other
        parameters of `then` followed by those of `proto`, and returns the
        results of `then` followed by the other results of `proto`.
      num_passed: See `then`.
      returned: Results of `proto`, by position, to be returned last even if
        `then` takes them.

    Raises:
      ValueError: If a proto is of another kind, or its graph cannot run here.
    """
    first = ComputationGraph(proto)
    second = ComputationGraph(then) if then is not None else None
    parts = [part for part in (first, second) if part]
    self._tables = []  # Handles of those of the last call.
    # TensorFlow keeps variables, and the functions that its functions call.
    # Nothing at exit, where it may be gone before this.
    weakref.finalize(
      self,
      _remove_from_tensorflow,
      [name for part in parts for name in part.library()],
      [variable for part in parts for variable in part.variables()],
      self._tables,
    ).atexit = False
    feeds, fetches, passed = first.feeds, first.fetches, {}
    if second is not None:
      num_kept = len(second.feeds) - num_passed
      passed = dict(
        zip(second.feeds[num_kept:], fetches[:num_passed], strict=True)
      )
      feeds = second.feeds[:num_kept] + feeds
      fetches = second.fetches + fetches[num_passed:]
    fetches = fetches + [first.fetches[position] for position in returned]
    build = functools.partial(_concrete_function, parts, feeds, passed)
    tables = [name for part in parts for name in part.tables()]
    self._find_tables = build(tables, _resources) if tables else None
    initializers = [part.initialize_op for part in parts if part.initialize_op]
    # Graphs with variables: assigned again before every call, perhaps from
    # its arguments.
    self._initialize = build(initializers, _after) if initializers else None
    self._lock = threading.Lock()
    self._num_results = len(fetches)
    self.num_arguments = len(feeds)
    # A fetch may be a feed, or be fetched twice; identities are neither.
    self._function = build(fetches, lambda found: [*map(tf.identity, found)])

  def __call__(self, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
    """Runs the graph on eager tensors."""
    if self._num_results == 0:
      return []
    if self._initialize is None and self._find_tables is None:
      return self._call(arguments)
    with self._lock:
      # Another thread must not assign the variables in between. Tables start
      # empty: one client's entries are not the next one's.
      _destroy(self._tables)
      if self._find_tables is not None:
        self._tables[:] = tensorflow_internals.call_flat(
          self._find_tables, arguments
        )
      if self._initialize is not None:
        tensorflow_internals.call_flat(self._initialize, arguments)
      return self._call(arguments)

  def _call(self, arguments):
    with (
      contextlib.nullcontext()
      if self.num_arguments
      else tensorflow_internals.without_grappler()
    ):
      return list(tensorflow_internals.call_flat(self._function, arguments))


def _remove_from_tensorflow(
  functions: list[str],
  variables: list[dict[str, Any]],
  tables: list[tf.Tensor],
) -> None:
  tensorflow_internals.remove_functions(functions)
  # A graph may be being traced where Python happens to collect this.
  with tf.init_scope(), placement.on_accelerator():
    _destroy(tables)
    for variable in variables:
      _destroy([tf.raw_ops.VarHandleOp(shape=None, **variable)])


def _destroy(resources) -> None:
  for handle in resources:
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def _concrete_function(parts, feeds, passed, wanted, choose):
  """Returns a function that computes what is wanted and nothing else.

  Args:
    parts: The graphs, in the order in which one takes from another.
    feeds: Names of the tensors that become its arguments.
    passed: Parameters of a graph that are results of another.
    wanted: Names of tensors or of operations.
    choose: From these to what the function returns.
  """
  needed, names = {}, [*wanted]
  for part in reversed(parts):
    needed[part] = part.needed_for(names)
    names += [passed[feed] for feed in needed[part][1] if feed in passed]

  def import_parts(*arguments):
    graph = tf.compat.v1.get_default_graph()
    given = dict(zip(feeds, arguments, strict=True))

    def find(name):
      name = passed.get(name, name)
      return given[name] if name in given else graph.as_graph_element(name)

    for part in parts:
      # Popped, as TensorFlow keeps this function.
      graph_def, read = needed.pop(part)
      part.import_needed(graph_def, {feed: find(feed) for feed in read})
    return choose([*map(find, wanted)])

  specs = {name: spec for part in parts for name, spec in part.specs().items()}
  # Not a tf.function, which would run operations that nothing needs.
  return tf.compat.v1.wrap_function(
    import_parts, [specs[feed] for feed in feeds]
  )


def _resources(operations):
  return [
    output
    for operation in operations
    for output in operation.outputs
    if output.dtype == tf.resource
  ]


def _after(operations):
  with tf.control_dependencies(operations):
    return [tf.identity(tf.constant(0))]
