"""Protocol Buffers messages without generated code, among them `tf.train`'s.

Private copies in descriptor pools of their own live in peace with TensorFlow's.
Reading and writing groups then takes milliseconds to start instead of
TensorFlow's four seconds and half a gigabyte.
"""

import functools
import types
from collections.abc import Mapping, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
  'bytes': _Field.TYPE_BYTES,
  'float': _Field.TYPE_FLOAT,
  'int32': _Field.TYPE_INT32,
  'int64': _Field.TYPE_INT64,
  'string': _Field.TYPE_STRING,
}


@functools.cache
def messages() -> types.SimpleNamespace:
  """Returns the classes `Example` and `SequenceExample` of `tf.train`.

  See tensorflow/core/example/{feature,example}.proto.
  """
  return message_classes(
    'tensorflow',
    {
      'BytesList': ['repeated bytes value 1'],
      'FloatList': ['repeated float value 1'],
      'Int64List': ['repeated int64 value 1'],
      'Feature': [
        'oneof BytesList bytes_list 1',
        'oneof FloatList float_list 2',
        'oneof Int64List int64_list 3',
      ],
      'Features': ['map Feature feature 1'],
      'FeatureList': ['repeated Feature feature 1'],
      'FeatureLists': ['map FeatureList feature_list 1'],
      'Example': ['optional Features features 1'],
      'SequenceExample': [
        'optional Features context 1',
        'optional FeatureLists feature_lists 2',
      ],
    },
  )


def message_classes(
  package: str, definitions: Mapping[str, Sequence[str]]
) -> types.SimpleNamespace:
  """Builds the classes of messages as proto3 defines them.

  Args:
    package: The messages' package.
    definitions: The fields of each message, as 'LABEL TYPE NAME NUMBER'. The
      label is optional, repeated, oneof (the message's only one) or map (from
      strings); the type is a scalar or another of the messages.

  Returns:
    The classes by the messages' names.
  """
  file = descriptor_pb2.FileDescriptorProto(
    name=f'fedfish/{package}.proto', package=package, syntax='proto3'
  )
  for name, fields in definitions.items():
    message = file.message_type.add(name=name)
    for field in fields:
      _add_field(message, f'.{package}', *field.split())
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return types.SimpleNamespace(
    **{
      name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f'{package}.{name}')
      )
      for name in definitions
    }
  )


def _add_field(message, package, label, kind, name, number) -> None:
  field = message.field.add(name=name, number=int(number))
  field.label = _Field.LABEL_OPTIONAL
  if label == 'map':
    # A repeated entry message {1: key, 2: value}.
    entry_name = f'{name.title().replace("_", "")}Entry'
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    _add_field(entry, package, 'optional', 'string', 'key', 1)
    _add_field(entry, package, 'optional', kind, 'value', 2)
    package, kind, label = f'{package}.{message.name}', entry.name, 'repeated'
  if label == 'repeated':
    field.label = _Field.LABEL_REPEATED
  if label == 'oneof':
    if not message.oneof_decl:
      message.oneof_decl.add(name='kind')
    field.oneof_index = 0
  if kind in _SCALARS:
    field.type = _SCALARS[kind]
  else:
    field.type = _Field.TYPE_MESSAGE
    field.type_name = f'{package}.{kind}'
