"""The `tf.train.Example` messages, without importing TensorFlow.

The two definitions below are TensorFlow's own wire format
(tensorflow/core/example/{feature,example}.proto), declared in a private
descriptor pool so that they live in peace with TensorFlow's copies. Reading and
writing groups then takes milliseconds to start instead of TensorFlow's four
seconds and half a gigabyte.
"""

import functools
import types

from google.protobuf import (
  descriptor_pb2,
  descriptor_pool,
  message_factory,
  text_format,
)

# A `map<string, V>` is a repeated entry message {1: key, 2: value}.
_FILE = """
name: 'tff_fedfish/example.proto' package: 'tensorflow' syntax: 'proto3'
message_type {
  name: 'BytesList'
  field { name: 'value' number: 1 label: LABEL_REPEATED type: TYPE_BYTES }
}
message_type {
  name: 'FloatList'
  field { name: 'value' number: 1 label: LABEL_REPEATED type: TYPE_FLOAT }
}
message_type {
  name: 'Int64List'
  field { name: 'value' number: 1 label: LABEL_REPEATED type: TYPE_INT64 }
}
message_type {
  name: 'Feature'
  oneof_decl { name: 'kind' }
  field { name: 'bytes_list' number: 1 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: '.tensorflow.BytesList' }
  field { name: 'float_list' number: 2 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: '.tensorflow.FloatList' }
  field { name: 'int64_list' number: 3 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: '.tensorflow.Int64List' }
}
message_type {
  name: 'Features'
  field { name: 'feature' number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE type_name: '.tensorflow.Features.FeatureEntry' }
  nested_type {
    name: 'FeatureEntry' options { map_entry: true }
    field { name: 'key' number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: 'value' number: 2 label: LABEL_OPTIONAL
            type: TYPE_MESSAGE type_name: '.tensorflow.Feature' }
  }
}
message_type {
  name: 'FeatureList'
  field { name: 'feature' number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE type_name: '.tensorflow.Feature' }
}
message_type {
  name: 'FeatureLists'
  field { name: 'feature_list' number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE
          type_name: '.tensorflow.FeatureLists.FeatureListEntry' }
  nested_type {
    name: 'FeatureListEntry' options { map_entry: true }
    field { name: 'key' number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: 'value' number: 2 label: LABEL_OPTIONAL
            type: TYPE_MESSAGE type_name: '.tensorflow.FeatureList' }
  }
}
message_type {
  name: 'Example'
  field { name: 'features' number: 1 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: '.tensorflow.Features' }
}
message_type {
  name: 'SequenceExample'
  field { name: 'context' number: 1 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: '.tensorflow.Features' }
  field { name: 'feature_lists' number: 2 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: '.tensorflow.FeatureLists' }
}
"""


@functools.cache
def messages() -> types.SimpleNamespace:
  """Returns the message classes `Example` and `SequenceExample`."""
  file = text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto())
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return types.SimpleNamespace(
    **{
      name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f'tensorflow.{name}')
      )
      for name in ('Example', 'SequenceExample')
    }
  )
