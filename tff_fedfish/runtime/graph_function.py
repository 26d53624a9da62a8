"""Turns serialized TensorFlow computations into functions of this process."""

import contextlib
import gc
import itertools
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tff_fedfish.runtime import large_models, tensorflow_internals

# Functions of different computations share names but not bodies.
_PREFIXES = itertools.count()


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
  """Pauses Python's garbage collector: a seventh of the time of tracing."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()


def unpack(proto: Any) -> tf.compat.v1.GraphDef:
  """Returns the graph of a TFF computation proto.

  Raises:
    ValueError: If the proto is not of kind 'tensorflow', or the graph has
      variables, tables or queues, which would keep values between calls.
  """
  kind = proto.WhichOneof('computation')
  if kind != 'tensorflow':
    raise ValueError(f'A tensorflow computation is required, found {kind}.')
  graph_def = tf.compat.v1.GraphDef()
  proto.tensorflow.graph_def.Unpack(graph_def)
  for node in _all_nodes(graph_def):
    if 'shared_name' in node.attr:
      raise ValueError(
        'A graph without variables, tables and queues is required, found '
        f'{node.op} {node.name!r}.'
      )
  return graph_def


class GraphFunction:
  """TFF `tensorflow` computations as a callable on flat lists of tensors.

  Tensors are in the order of the computation's type, datasets as variants.
  """

  def __init__(self, proto, then=None, returned: Sequence[int] = ()):
    """Imports one graph, or two of which the second takes from the first.

    Tensors that pass from one to the other never leave the function, so
    TensorFlow may reuse their memory for the results.

    Args:
      proto: A TFF computation proto.
      then: Another one, whose last parameters are the results of `proto`. The
        function takes its other parameters, then those of `proto`.
      returned: Results of `proto`, by position, that are returned after those
        of `then`.

    Raises:
      ValueError: If `unpack` does, or a parameter is missing.
    """
    first = _Graph(proto)
    second = _Graph(then) if then is not None else None
    library, specs, num_kept, unread = first.library, first.specs, 0, set()
    if second is not None:
      library = library + second.library
      num_kept = len(second.specs) - first.num_results
      specs = second.specs[:num_kept] + specs
      read = {index - num_kept for index in second.parameters_read()}
      unread = set(range(first.num_results)) - read - set(returned)
    # Before anything is imported, which may fail. Not at exit, where
    # TensorFlow may be gone before this.
    weakref.finalize(
      self, tensorflow_internals.remove_functions, library
    ).atexit = False

    def run(*arguments):
      results = first.run(arguments[num_kept:], unread)
      if second is not None:
        passed = [*arguments[:num_kept], *results]
        results = second.run(passed) + [results[index] for index in returned]
      # A result may be an argument, or be returned twice; identities are not.
      return [*map(tf.identity, results)]

    self._function = tf.compat.v1.wrap_function(run, specs)
    self._num_results = len(self._function.outputs)

  def __call__(self, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
    """Runs the graph on eager tensors."""
    if self._num_results == 0:
      return []
    with contextlib.ExitStack() as stack:
      if not arguments:
        stack.enter_context(tensorflow_internals.without_grappler())
      return list(tensorflow_internals.call_flat(self._function, arguments))


class _Graph:
  """A computation's graph, which runs once: while another graph is built.

  Attributes:
    library: Names of the functions that it calls, unique in this process.
    specs: `tf.TensorSpec`s of its parameters.
    num_results: How many tensors it returns.
  """

  def __init__(self, proto):
    self._graph_def = unpack(proto)
    self.library = _make_names_unique(self._graph_def)
    large_models.make_zeros_on_demand(self._graph_def)
    binding = proto.tensorflow
    self._feeds = []
    if binding.HasField('parameter'):
      self._feeds = list(_tensor_names(binding.parameter))
    self._fetches = list(_tensor_names(binding.result))
    self.num_results = len(self._fetches)
    nodes = {node.name: node for node in self._graph_def.node}
    feeds = [nodes[_node_name(feed)].attr for feed in self._feeds]
    self.specs = [
      tf.TensorSpec(tf.TensorShape(feed['shape'].shape), feed['dtype'].type)
      for feed in feeds
    ]

  def parameters_read(self) -> set[int]:
    """Returns the positions of the parameters that the results depend on."""
    needed = self._needed_for(self._fetches)
    feeds = map(_node_name, self._feeds)
    return {index for index, feed in enumerate(feeds) if feed in needed}

  def run(
    self, arguments: Sequence[tf.Tensor], unread: Collection[int] = ()
  ) -> list[tf.Tensor | None]:
    """Imports the graph into the one that is being built.

    Results whose positions are in `unread` become None.
    """
    fetches = [
      None if index in unread else fetch
      for index, fetch in enumerate(self._fetches)
    ]
    given = dict(zip(self._feeds, arguments, strict=True))
    names = [fetch for fetch in fetches if fetch and fetch not in given]
    needed, feeds = self._needed_for(names), set(map(_node_name, given))
    # TensorFlow keeps the function that calls this, and what it holds.
    graph_def, self._graph_def = self._graph_def, None
    for index in reversed(range(len(graph_def.node))):
      node = graph_def.node[index]
      if node.name not in needed:
        # It would run, too.
        del graph_def.node[index]
        continue
      if node.op == 'Placeholder' and node.name not in feeds:
        raise ValueError(
          f'A parameter is missing: nothing feeds {node.name!r}.'
        )
      # Drop colocation: the other op may be pruned.
      if '_class' in node.attr:
        del node.attr['_class']
    # TensorFlow refuses to map names that nothing reads.
    read = {
      name.removesuffix(':0') for node in graph_def.node for name in node.input
    }
    input_map = {
      key: tensor
      for feed, tensor in given.items()
      for key in (_node_name(feed), f'^{_node_name(feed)}')
      if key in read
    }
    found = dict(
      zip(names, tf.import_graph_def(graph_def, input_map, names), strict=True)
    )
    return [
      given[fetch] if fetch in given else found.get(fetch) for fetch in fetches
    ]

  def _needed_for(self, tensor_names):
    """Returns the names of the nodes that these tensors depend on."""
    inputs = {node.name: node.input for node in self._graph_def.node}
    found, unseen = set(), [_node_name(name) for name in tensor_names]
    while unseen:
      name = unseen.pop()
      if name not in found:
        found.add(name)
        # A name without a node: the import says so.
        for source in inputs.get(name, ()):
          unseen.append(_node_name(source.removeprefix('^')))
    return found


def _all_nodes(graph_def) -> Iterator[Any]:
  """Yields the nodes of a graph and of the functions that it calls."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def _node_name(tensor_name: str) -> str:
  return tensor_name.partition(':')[0]


def _tensor_names(binding) -> Iterator[str]:
  """Yields the names of a TFF binding's tensors, in the order of the type."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    yield binding.tensor.tensor_name
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name
  elif kind == 'struct':
    for element in binding.struct.element:
      yield from _tensor_names(element)


def _make_names_unique(graph_def) -> list[str]:
  """Prefixes library functions and all uses of them; returns their names."""
  prefix, library = f'fedfish_{next(_PREFIXES)}_', graph_def.library
  names = [function.signature.name for function in library.function]
  renamed = {name: prefix + name for name in names}
  for node in _all_nodes(graph_def):
    node.op = renamed.get(node.op, node.op)
    for attribute in node.attr.values():
      called = [*attribute.list.func]
      if attribute.HasField('func'):
        called.append(attribute.func)
      for function in called:
        function.name = renamed.get(function.name, function.name)
  for function in library.function:
    function.signature.name = renamed[function.signature.name]
  for gradient in library.gradient:
    for field in ('function_name', 'gradient_func'):
      name = getattr(gradient, field)
      setattr(gradient, field, renamed.get(name, name))
  return list(renamed.values())
