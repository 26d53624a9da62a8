"""Turns a serialized TensorFlow computation into a function of this process."""

import itertools
import threading

import tensorflow as tf

# Functions of different computations share names but not bodies; each
# computation's names get a prefix that no other has.
_PREFIXES = itertools.count()


class GraphFunction:
  """A TFF `tensorflow` computation as a callable on flat lists of tensors.

  Args and results are flat, in the order of the computation's type; a dataset
  is passed as its variant tensor, so that nothing is serialized.
  """

  def __init__(self, proto):
    """Imports the graph.

    Args:
      proto: A TFF computation proto of kind 'tensorflow'.

    Raises:
      ValueError: If it is of another kind.
    """
    kind = proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise ValueError(f'A tensorflow computation is required, found {kind}.')
    graph_def = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(graph_def)
    _make_names_unique(graph_def, f'fedfish_{next(_PREFIXES)}_')
    feeds = []
    if proto.tensorflow.HasField('parameter'):
      feeds = _tensor_names(proto.tensorflow.parameter)
    fetches = _tensor_names(proto.tensorflow.result)

    imported = tf.compat.v1.wrap_function(
      lambda: tf.import_graph_def(graph_def, name=''), []
    )
    graph = imported.graph
    self._initialize = None
    self._lock = threading.Lock()
    if proto.tensorflow.initialize_op:
      # Graphs with variables: assigned anew before every call.
      self._initialize = imported.prune(
        [], graph.as_graph_element(proto.tensorflow.initialize_op)
      )
    with graph.as_default():
      # A fetch may be a feed, or be fetched twice; identities are neither.
      results = [tf.identity(graph.as_graph_element(name)) for name in fetches]
    self._num_results = len(results)
    self._function = imported.prune(
      [graph.as_graph_element(name) for name in feeds], results
    )

  def __call__(self, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
    """Runs the graph on eager tensors."""
    if self._num_results == 0:
      return []
    if self._initialize is None:
      return self._call(arguments)
    with self._lock:
      # Another thread must not assign the variables in between.
      self._initialize()
      return self._call(arguments)

  def _call(self, arguments):
    # Called the public way, TensorFlow first tries the arguments by name, fails
    # and formats every tensor into the error that it then discards: 50 ms a
    # call at a million weights, most of a round.
    return list(
      self._function._call_flat(  # pylint: disable=protected-access
        arguments, self._function.captured_inputs
      )
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
      if 'shared_name' in node.attr and node.attr['shared_name'].s:
        node.attr['shared_name'].s = (
          prefix.encode() + node.attr['shared_name'].s
        )
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
