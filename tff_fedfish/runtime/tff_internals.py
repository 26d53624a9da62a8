"""Private names of TensorFlow Federated that the engine needs.

They are imported from here only; docs/upgrading.md says what to look for when
a version moves them.
"""

# Nothing is used in this module itself.
# ruff: noqa: F401

# The serialized form of computations and types: workers are sent bytes.
from tensorflow_federated.proto.v0 import computation_pb2

# A state's containers by TFF's own order of fields; `tf.nest` sorts them.
from tensorflow_federated.python.common_libs.structure import (
  Struct,
  from_container,
  to_elements,
)

# A computation without clients becomes one TensorFlow graph, and the error of
# those that have no MapReduceForm.
from tensorflow_federated.python.core.backends.mapreduce.compiler import (
  MapReduceFormCompilationError,
  consolidate_and_extract_local_processing,
)

# Rounds with secure sums, as TFF's own simulation runs them.
from tensorflow_federated.python.core.backends.test.compiler import (
  replace_secure_intrinsics_with_bodies,
)

# Which values TFF's own context accepts for a dtype.
from tensorflow_federated.python.core.impl.compiler.array import (
  Array,
  is_compatible_dtype,
)

# Computations that are one graph already.
from tensorflow_federated.python.core.impl.compiler.building_blocks import (
  CompiledComputation,
)
from tensorflow_federated.python.core.impl.types.placements import CLIENTS
from tensorflow_federated.python.core.impl.types.type_analysis import (
  contains as type_contains,
)

# Results in the containers that TFF's own context returns.
from tensorflow_federated.python.core.impl.types.type_conversions import (
  type_to_py_container,
  type_to_tf_structure,
)
from tensorflow_federated.python.core.impl.types.type_serialization import (
  deserialize_type,
  serialize_type,
)

# Lists in place of datasets.
from tensorflow_federated.python.core.impl.utils.tensorflow_utils import (
  make_data_set_from_elements,
)
