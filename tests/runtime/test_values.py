"""Values of a TFF type, and the errors of those that are none."""

import collections
import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import in_process_context, values


def _vector(dtype, size=2):
  return tff.TensorType(dtype, [size])


# (type, value); tensors are made when they are needed.
_ACCEPTED = {
  'float': (np.float32, 0.1),
  'largest int32': (np.int32, 2**31 - 1),
  'largest uint64': (np.uint64, 2**64 - 1),
  'bool': (np.bool_, True),
  'complex': (np.complex64, 1.5 - 2j),
  'wider int': (_vector(np.int64), np.array([1, -2], np.int32)),
  'int of uint': (np.int32, np.uint8(200)),
  'tensor of the dtype': (np.int32, lambda: tf.constant(-3)),
  'wider tensor': (_vector(np.int64), lambda: tf.constant([1, -2])),
  'variable': (_vector(np.float32), lambda: tf.Variable([1.5, 2.5])),
  'list of floats': (_vector(np.float32), [0.5, -2.0]),
  'list of tensors': (_vector(np.float32), lambda: [tf.constant(1.5), 2.0]),
  'list of narrower arrays': (
    tff.TensorType(np.float32, [2, 1]),
    [np.array([0.5], np.float16), np.array([2], np.float16)],
  ),
  'bytes': (np.str_, b'text'),
  'array of str': (_vector(np.str_), np.array(['a', 'text'])),
}
_REFUSED = {
  'float beyond float32': (np.float32, 1e300),
  'int for a float': (np.float32, 1),
  'float for an int': (np.int32, 1.5),
  'int beyond int32': (np.int32, 2**31),
  'negative int for uint8': (np.uint8, -1),
  'bool for an int': (np.int32, True),
  'narrower array': (_vector(np.float32), np.array([0.5, 2.0])),
  'ints for floats': (_vector(np.float32), np.array([1, 2], np.int32)),
  'narrower tensor': (np.float32, lambda: tf.constant(0.5, tf.float64)),
  'float32 for bfloat16': (tf.bfloat16.as_numpy_dtype, 0.5),
  'list of ints for floats': (_vector(np.float32), [1, 2]),
  'list with one that is too large': (_vector(np.float32), [1.0, 1e300]),
  'int for a string': (np.str_, 1),
  'longer array': (_vector(np.float32), np.zeros([3], np.float32)),
  'scalar for a vector': (_vector(np.float32), 1.0),
}


def _case(cases, name):
  value_type, value = cases[name]
  return tff.types.to_type(value_type), value() if callable(value) else value


def _plain(value):
  """Returns an array, of bytes where it is of strings."""
  array = np.asarray(value)
  return array.astype('S') if array.dtype.kind in 'SUO' else array


@pytest.mark.parametrize('name', _ACCEPTED)
def test_accepted(name):
  value_type, value = _case(_ACCEPTED, name)
  (found,) = values.flatten(value, value_type)
  assert isinstance(found, tf.Tensor)
  assert found.dtype == tf.as_dtype(value_type.dtype)
  if isinstance(value, list):
    value = np.array([np.asarray(element) for element in value])
  # A Python float goes for the nearest float32.
  expected = _plain(value).astype(_plain(found).dtype)
  np.testing.assert_array_equal(_plain(found), expected)


@pytest.mark.parametrize('name', _REFUSED)
def test_refused(name):
  value_type, value = _case(_REFUSED, name)
  with pytest.raises(TypeError, match='is required, found'):
    values.flatten(value, value_type)


@pytest.mark.slow
def test_as_in_the_context_of_tff():
  def run(value_type, value):
    identity = tff.tensorflow.computation(lambda x: x, value_type)
    return context._invoke_stock(identity, value)

  with contextlib.closing(in_process_context.InProcessContext()) as context:
    for name in _ACCEPTED:
      value_type, value = _case(_ACCEPTED, name)
      (expected,) = values.flatten(value, value_type)
      found = _plain(run(value_type, value))
      np.testing.assert_array_equal(found, _plain(expected), name)
    for name in _REFUSED:
      with pytest.raises(TypeError):
        pytest.fail(f'{name}: {run(*_case(_REFUSED, name))}')


def test_text_that_is_not_ascii():
  # A difference: TFF refuses it in arrays.
  (found,) = values.flatten(['\xe9'], _vector(np.str_, 1))
  assert found.numpy() == ['\xe9'.encode()]


def test_a_tensor_of_the_dtype_is_passed_on_itself():
  tensor = tf.constant([[0.5, -2.0]])
  (found,) = values.flatten(tensor, tff.TensorType(np.float32, [None, 2]))
  assert found is tensor


def test_tensorflow_converts_the_elements_of_a_list():
  pair = collections.OrderedDict(b=np.float32, a=np.int64)
  rows = [collections.OrderedDict(b=1, a=2), (2.5, np.int32(-3))]
  sequence = tff.SequenceType(pair)
  found = values.unflatten(values.flatten(rows, sequence), sequence)
  found = list(found.as_numpy_iterator())
  assert [(row['b'], row['a']) for row in found] == [(1, 2), (2.5, -3)]


@pytest.mark.parametrize(
  'value_type, value, message',
  [
    (
      tff.TensorType(np.float32, [2, 3]),
      np.zeros([3, 2], np.float32),
      'A value of type float32[2,3] is required, found float32[3,2].',
    ),
    (
      np.int32,
      2**40,
      'A value of type int32 is required, found the int 1099511627776.',
    ),
    (
      tff.StructType([('a', [('b', np.float32), ('c', np.int32)])]),
      {'a': {'b': 1.0, 'd': 2}},
      'A value of type <b=float32,c=int32> is required, found the dict '
      "{'b': 1.0, 'd': 2}.",
    ),
    (
      tff.StructType([np.float32, np.float32]),
      [1.0],
      'A value of type <float32,float32> is required, found the list [1.0].',
    ),
    (
      tff.SequenceType(np.float32),
      (5.0, 6.0),
      'A value of type float32* is required, found the tuple (5.0, 6.0).',
    ),
    (
      tff.SequenceType(np.float32),
      tf.data.Dataset.range(3),
      'A dataset of float32* is required, found int64*.',
    ),
    (
      tff.FunctionType(np.int32, np.float32),
      5,
      'Values of type (int32 -> float32) cannot be passed.',
    ),
  ],
)
def test_words_of_errors(value_type, value, message):
  with pytest.raises(TypeError) as raised:
    values.flatten(value, tff.types.to_type(value_type))
  assert str(raised.value) == message
