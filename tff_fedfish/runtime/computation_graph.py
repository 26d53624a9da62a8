"""The graph of a serialized TensorFlow computation, and its parts."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tff_fedfish.runtime import zero_tensors

# Functions of different computations share names but not bodies; each
# computation's names get a prefix that no other has.
_PREFIXES = itertools.count()
# Kernels that hold on to what they made, destroyed or not.
_OUTLIVING = re.compile('Queue|Barrier|Accumulator|Stage|OneShotIterator')


def unpack(proto: Any) -> tf.compat.v1.GraphDef:
  """Returns the graph of a TFF computation proto.

  Raises:
    ValueError: If the proto is of another kind than 'tensorflow', or the graph
      cannot start again: what a call leaves behind would stay for the next.
  """
  kind = proto.WhichOneof('computation')
  if kind != 'tensorflow':
    raise ValueError(f'A tensorflow computation is required, found {kind}.')
  graph_def = tf.compat.v1.GraphDef()
  proto.tensorflow.graph_def.Unpack(graph_def)
  for function, node in _tables(graph_def):
    has_inputs = not all(name.startswith('^') for name in node.input)
    # A function's arguments are not known where its table is to be removed.
    if _OUTLIVING.search(node.op) or (function and has_inputs):
      raise ValueError(
        f'A graph that can start again is required, found {node.op} '
        f'{node.name!r}, which keeps what one call puts there for the next.'
      )
  return graph_def


class ComputationGraph:
  """A computation's graph; names are those it will have once imported.

  Attributes:
    scope: Unique name scope into which it is imported.
    graph_def: The graph, library functions renamed.
    feeds: Names of the parameters' tensors.
    fetches: Names of the results' tensors.
    initialize_op: Name of what assigns the variables, '' without any.
  """

  def __init__(self, proto: Any):
    """Takes a computation apart.

    Args:
      proto: A TFF computation proto of kind 'tensorflow'.

    Raises:
      ValueError: If it is of another kind, or if its graph cannot run here.
    """
    self.scope = f'fedfish_{next(_PREFIXES)}'
    self.graph_def = unpack(proto)
    _make_names_unique(self.graph_def, f'{self.scope}_')
    for function, node in list(_tables(self.graph_def)):
      if function:
        # The same table, by its shared name, where `tables` finds it.
        found = self.graph_def.node.add(name=f'{function}_{node.name}')
        found.MergeFrom(tf.compat.v1.NodeDef(op=node.op, attr=node.attr))
        found.attr.pop('_class', None)
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

  def tables(self) -> list[str]:
    """Returns the operations of lookup tables and of the like.

    Variables are not among them.
    """
    return self._scoped(
      node.name for function, node in _tables(self.graph_def) if not function
    )

  def specs(self) -> dict[str, tf.TensorSpec]:
    """Returns shapes and dtypes of the parameters' tensors, by name."""
    nodes = {node.name: node for node in self.graph_def.node}
    attributes = {feed: nodes[self._node(feed)].attr for feed in self.feeds}
    return {
      feed: tf.TensorSpec(
        tf.TensorShape(attribute['shape'].shape), attribute['dtype'].type
      )
      for feed, attribute in attributes.items()
    }

  def needed_for(
    self, wanted: Iterable[str]
  ) -> tuple[tf.compat.v1.GraphDef, list[str]]:
    """Returns what leads from the parameters to tensors and operations.

    Args:
      wanted: Their names; those of another graph are left out.

    Returns:
      The graph without its parameters' nodes, and the parameters that it reads
      or that are wanted.
    """
    nodes = {node.name: node for node in self.graph_def.node}
    feeds = {self._node(feed): feed for feed in self.feeds}
    prefix, found = f'{self.scope}/', set()
    ahead = [self._node(name) for name in wanted if name.startswith(prefix)]
    while ahead:
      name = ahead.pop()
      if name not in found:
        found.add(name)
        if name not in feeds:
          ahead += map(_node_name, nodes[name].input)
    graph_def = tf.compat.v1.GraphDef(
      versions=self.graph_def.versions, library=self.graph_def.library
    )
    graph_def.node.extend(
      node
      for name, node in nodes.items()
      if name in found and name not in feeds
    )
    kept = {f'loc:@{node.name}'.encode() for node in graph_def.node}
    for node in graph_def.node:
      if '_class' in node.attr:
        # TensorFlow refuses to place a node beside one that is not there.
        beside = node.attr['_class'].list.s
        beside[:] = [name for name in beside if name in kept]
    return graph_def, [feed for name, feed in feeds.items() if name in found]

  def import_needed(
    self, graph_def: tf.compat.v1.GraphDef, given: Mapping[str, tf.Tensor]
  ) -> None:
    """Imports what `needed_for` found into the current graph.

    Args:
      graph_def: The graph.
      given: The parameters that are read or wanted, by name.
    """
    read = {name for node in graph_def.node for name in node.input}
    input_map = {
      key: tensor
      for name, tensor in given.items()
      for key in (self._node(name), f'^{self._node(name)}')
      # TensorFlow refuses others.
      if key in read
    }
    tf.import_graph_def(graph_def, input_map, name=self.scope)

  def _node(self, name):
    return _node_name(name.removeprefix(f'{self.scope}/'))

  def _scoped(self, names):
    return [f'{self.scope}/{name}' for name in names]


def _node_name(name: str) -> str:
  """Returns the node of a tensor's name or of a control input."""
  return name.removeprefix('^').partition(':')[0]


def _tensor_names(binding) -> list[str]:
  """Returns the names of a TFF binding's tensors, in the order of the type."""
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


def _tables(graph_def) -> Iterator[tuple[str, Any]]:
  """Yields nodes that make shared resources, but for variables.

  Before each comes its function's name, '' of the graph itself.
  """
  functions = graph_def.library.function
  for name, nodes in (
    ('', graph_def.node),
    *((each.signature.name, each.node_def) for each in functions),
  ):
    for node in nodes:
      if 'shared_name' in node.attr and node.op != 'VarHandleOp':
        yield name, node


def _make_names_unique(graph_def, prefix: str) -> None:
  """Prefixes library functions and shared resources, and all uses of them."""
  renamed = {
    function.signature.name: prefix + function.signature.name
    for function in graph_def.library.function
  }

  def rename_in(nodes, function=''):
    for node in nodes:
      node.op = renamed.get(node.op, node.op)
      if 'shared_name' in node.attr:
        name = node.attr['shared_name'].s
        if 'use_node_name_sharing' in node.attr:
          # A table that has no name goes by its node's.
          name = name or (function + node.name).encode()
        if name:
          node.attr['shared_name'].s = prefix.encode() + name
      for attribute in node.attr.values():
        if attribute.HasField('func'):
          attribute.func.name = renamed.get(
            attribute.func.name, attribute.func.name
          )
        for called in attribute.list.func:
          called.name = renamed.get(called.name, called.name)

  rename_in(graph_def.node)
  for function in graph_def.library.function:
    function.signature.name = renamed[function.signature.name]
    rename_in(function.node_def, f'{function.signature.name}/')
  for gradient in graph_def.library.gradient:
    gradient.function_name = renamed.get(
      gradient.function_name, gradient.function_name
    )
    gradient.gradient_func = renamed.get(
      gradient.gradient_func, gradient.gradient_func
    )
