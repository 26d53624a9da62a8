"""Turns serialized TensorFlow computations into functions of this process."""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_fedfish.runtime import placement, tensorflow_internals, zero_tensors

# Functions of different computations share names but not bodies; each
# computation's names get a prefix that no other has.
_PREFIXES = itertools.count()


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
      ValueError: If a proto is of another kind.
    """
    first = _Graph(proto)
    second = _Graph(then) if then is not None else None
    imported = tf.compat.v1.wrap_function(
      lambda: _import(first, second, num_passed), []
    )
    graph = imported.graph
    parts = [part for part in (first, second) if part]
    feeds, fetches = first.feeds, first.fetches
    if second is not None:
      num_kept = len(second.feeds) - num_passed
      feeds = second.feeds[:num_kept] + feeds
      fetches = second.fetches + fetches[num_passed:]
    fetches = fetches + [first.fetches[position] for position in returned]
    with graph.as_default():
      # A fetch may be a feed, or be fetched twice; identities are neither.
      results = [tf.identity(graph.as_graph_element(name)) for name in fetches]
    feeds = [*map(graph.as_graph_element, feeds)]
    tables = [table for part in parts for table in part.tables(graph)]
    self._find_tables = imported.prune(feeds, tables) if tables else None
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
    self._initialize = None
    self._lock = threading.Lock()
    initializers = [part.initialize_op for part in parts if part.initialize_op]
    if initializers:
      # Graphs with variables: assigned again before every call, perhaps from
      # its arguments.
      self._initialize = imported.prune(
        feeds, [*map(graph.as_graph_element, initializers)]
      )
    self._num_results = len(results)
    self.num_arguments = len(feeds)
    self._function = imported.prune(feeds, results)

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


class _Graph:
  """A computation's graph; names are those it will have once imported.

  Attributes:
    scope: Unique name scope into which it is imported.
    graph_def: The graph, library functions renamed.
    feeds: Names of the parameters' tensors.
    fetches: Names of the results' tensors.
    initialize_op: Name of what assigns the variables, '' without any.
  """

  def __init__(self, proto):
    kind = proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise ValueError(f'A tensorflow computation is required, found {kind}.')
    self.scope = f'fedfish_{next(_PREFIXES)}'
    self.graph_def = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(self.graph_def)
    _make_names_unique(self.graph_def, f'{self.scope}_')
    zero_tensors.make_on_demand(self.graph_def)
    self.feeds = []
    if proto.tensorflow.HasField('parameter'):
      self.feeds = self._scoped(_tensor_names(proto.tensorflow.parameter))
    self.fetches = self._scoped(_tensor_names(proto.tensorflow.result))
    self.initialize_op = ''
    if proto.tensorflow.initialize_op:
      (self.initialize_op,) = self._scoped([proto.tensorflow.initialize_op])

  def library(self) -> list[str]:
    """Returns the names of the functions that the graph calls."""
    return [
      function.signature.name for function in self.graph_def.library.function
    ]

  def variables(self) -> list[dict[str, Any]]:
    """Returns the arguments of `VarHandleOp` that find the variables."""
    functions = self.graph_def.library.function
    return [
      dict(
        shared_name=node.attr['shared_name'].s.decode(),
        container=node.attr['container'].s.decode(),
        dtype=node.attr['dtype'].type,
      )
      for nodes in (self.graph_def.node, *(f.node_def for f in functions))
      for node in nodes
      if node.op == 'VarHandleOp'
    ]

  def tables(self, graph: tf.Graph) -> list[tf.Tensor]:
    """Returns handles of lookup tables and the like, not of variables.

    The graph is the one into which this one was imported.
    """
    operations = [
      graph.get_operation_by_name(f'{self.scope}/{node.name}')
      for node in self.graph_def.node
      if 'shared_name' in node.attr and node.op != 'VarHandleOp'
    ]
    return [
      output
      for operation in operations
      for output in operation.outputs
      if output.dtype == tf.resource
    ]

  def _scoped(self, names):
    return [f'{self.scope}/{name}' for name in names]


def _import(first, second, num_passed):
  """Imports the graphs into the current one."""
  tf.import_graph_def(first.graph_def, name=first.scope)
  if second is None:
    return
  graph = tf.compat.v1.get_default_graph()
  taken = second.feeds[len(second.feeds) - num_passed :]
  tf.import_graph_def(
    second.graph_def,
    name=second.scope,
    input_map={
      feed.removeprefix(f'{second.scope}/'): graph.as_graph_element(fetch)
      for feed, fetch in zip(taken, first.fetches[:num_passed], strict=True)
    },
  )


def _tensor_names(binding) -> list[str]:
  """Names of the tensors of a TFF binding, in the order of the type."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  if kind == 'struct':
    return [
      name
      for element in binding.struct.element
      for name in _tensor_names(element)
    ]
  return []


def _make_names_unique(graph_def, prefix: str) -> None:
  """Prefixes library functions and shared resources, and all uses of them."""
  renamed = {
    function.signature.name: prefix + function.signature.name
    for function in graph_def.library.function
  }

  def rename_in(nodes):
    for node in nodes:
      node.op = renamed.get(node.op, node.op)
      if 'shared_name' in node.attr:
        name = node.attr['shared_name'].s
        if 'use_node_name_sharing' in node.attr:
          # A table that has no name goes by its node's.
          name = name or node.name.encode()
        if name:
          node.attr['shared_name'].s = prefix.encode() + name
      for attribute in node.attr.values():
        if attribute.HasField('func'):
          attribute.func.name = renamed.get(
            attribute.func.name, attribute.func.name
          )
        for function in attribute.list.func:
          function.name = renamed.get(function.name, function.name)

  rename_in(graph_def.node)
  for function in graph_def.library.function:
    function.signature.name = renamed[function.signature.name]
    rename_in(function.node_def)
  for gradient in graph_def.library.gradient:
    gradient.function_name = renamed.get(
      gradient.function_name, gradient.function_name
    )
    gradient.gradient_func = renamed.get(
      gradient.gradient_func, gradient.gradient_func
    )
