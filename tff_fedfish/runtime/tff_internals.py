"""Private names of TensorFlow Federated that the engine needs.

They are imported from here only; docs/upgrading.md says what each is needed
for, and what to look for when a version moves it.
"""

# ruff: noqa: F401

from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.common_libs.structure import (
  Struct,
  from_container,
  to_elements,
)
from tensorflow_federated.python.core.backends.mapreduce.compiler import (
  MapReduceFormCompilationError,
  consolidate_and_extract_local_processing,
)
from tensorflow_federated.python.core.backends.test.compiler import (
  replace_secure_intrinsics_with_bodies,
)
from tensorflow_federated.python.core.impl.compiler.array import (
  Array,
  is_compatible_dtype,
)
from tensorflow_federated.python.core.impl.types.type_analysis import (
  contains as type_contains,
)
from tensorflow_federated.python.core.impl.types.type_conversions import (
  type_to_py_container,
  type_to_tf_structure,
)
from tensorflow_federated.python.core.impl.types.type_serialization import (
  deserialize_type,
  serialize_type,
)
from tensorflow_federated.python.core.impl.utils.tensorflow_utils import (
  make_data_set_from_elements,
)
