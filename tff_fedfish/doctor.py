"""Checks that what the project stands on works on this machine."""

import dataclasses
import importlib.metadata
import pathlib
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

from tff_fedfish import environment

_GIB = 1 << 30
# What `fedfish demo` needs, with some room.
_WANTED_MEMORY_GIB = 6
_WANTED_DISK_GIB = 2

_SET_UP = 'Set up again: remove .venv, then `make .venv`.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """Result of one check."""

  name: str
  """Name of the check."""
  status: Literal['ok', 'warning', 'problem']
  """'warning': some work will be slow or fail; 'problem': nothing will work."""
  found: str
  """Observation, in one line."""
  remedy: str = ''
  """Remedy; empty if all is well."""


def examine() -> Iterator[Finding]:
  """Yields one finding after the other; the later checks take seconds."""
  yield _platform(sys.version_info[:2], sys.platform, platform.machine())
  yield _packages(environment.package_versions(), _declared_versions())
  processor = _processor(environment.cpu_flags())
  yield processor
  yield _memory(environment.memory_bytes())
  yield _disk(shutil.disk_usage(pathlib.Path.cwd()).free)
  # Without the instructions it is built for, TensorFlow would end the process.
  if processor.status == 'problem':
    return
  yield _attempt('TensorFlow', _try_tensorflow)
  yield _attempt('devices', _try_devices, _judge_devices)
  yield _attempt('tokenizer', _try_tokenizer)
  yield _attempt('TFF in process', _try_federated)
  yield _attempt('Beam in process', _try_beam)


def is_usable(findings: list[Finding]) -> bool:
  """Returns whether no finding is a problem."""
  return all(finding.status != 'problem' for finding in findings)


def _finding(name, found, remedy='', *, otherwise='warning') -> Finding:
  """Returns a finding, whose status is 'ok' if there is no remedy."""
  status = otherwise if remedy else 'ok'
  return Finding(name=name, status=status, found=found, remedy=remedy)


def _platform(version: tuple[int, int], system: str, machine: str) -> Finding:
  found = f'Python {version[0]}.{version[1]}, {system}, {machine}'
  remedy = 'Use Python 3.11 on Linux x86-64: nothing else has all packages.'
  if version == (3, 11) and system == 'linux' and machine == 'x86_64':
    remedy = ''
  found = f'{found} ({platform.platform()})'
  return _finding('platform', found, remedy, otherwise='problem')


def _packages(
  versions: dict[str, str | None], declared: dict[str, str]
) -> Finding:
  wrong = [
    f'{name} is {versions[name] or "missing"}'
    + (f', not {declared[name]}' if name in declared else '')
    for name in versions
    if versions[name] != declared.get(name, versions[name] or 'there')
  ]
  if wrong:
    found = '; '.join(wrong)
    return _finding('packages', found, _SET_UP, otherwise='problem')
  listed = ', '.join(f'{name} {version}' for name, version in versions.items())
  return _finding('packages', listed)


def _declared_versions() -> dict[str, str]:
  """Returns the versions that the project's metadata pins with `==`."""
  try:
    declared = importlib.metadata.requires('tff-fedfish') or []
  except importlib.metadata.PackageNotFoundError:
    return {}
  pinned = (requirement.partition('==') for requirement in declared)
  return {name.strip(): version for name, _, version in pinned if version}


def _processor(flags: frozenset[str]) -> Finding:
  cores = environment.num_cores()
  found = f'{environment.cpu_model()}, {cores} core{"s" * (cores > 1)}'
  if flags and 'avx' not in flags:
    remedy = 'Use a processor with AVX: TensorFlow is built for it.'
    found = f'{found}, without AVX'
    return _finding('processor', found, remedy, otherwise='problem')
  return _finding('processor', found)


def _memory(memory_bytes: dict[str, int]) -> Finding:
  available, total = (memory_bytes[n] / _GIB for n in ('available', 'total'))
  remedy = ''
  if available < _WANTED_MEMORY_GIB:
    remedy = f'Free some: the demo takes up to {_WANTED_MEMORY_GIB} GiB.'
  found = f'{available:.1f} GiB available of {total:.1f}'
  return _finding('memory', found, remedy)


def _disk(free_bytes: int) -> Finding:
  free, remedy = free_bytes / _GIB, ''
  if free < _WANTED_DISK_GIB:
    remedy = f'Free some: keep {_WANTED_DISK_GIB} GiB for corpora, runs.'
  found = f'{free:.1f} GiB free in the current directory'
  return _finding('disk', found, remedy)


def _attempt(
  name: str,
  action: Callable[[], str],
  judge: Callable[[str], str] = lambda found: '',
) -> Finding:
  """Runs a check, which says what it found or raises.

  `judge` turns what was found into a remedy, '' if all is well.
  """
  try:
    found = action()
  # Whatever a broken installation raises is a finding, not a crash.
  except Exception as error:
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    return _finding(name, text[:300], _SET_UP, otherwise='problem')
  return _finding(name, found, judge(found))


def _expect(name: str, expected, found) -> None:
  if found != expected:
    raise RuntimeError(f'{name} gave {found}, expected {expected}')


def _try_tensorflow() -> str:
  import tensorflow as tf

  product = tf.linalg.matmul([[1.0, 2.0]], [[3.0], [4.0]])
  _expect('a matrix product', 11.0, float(product))  # 1 * 3 + 2 * 4
  return f'multiplies matrices on {product.device.rpartition("/device:")[2]}'


def _try_devices() -> str:
  return ', '.join(environment.devices())


def _judge_devices(found: str) -> str:
  has_driver = pathlib.Path('/proc/driver/nvidia/version').exists()
  if has_driver and 'GPU' not in found:
    return (
      'An NVIDIA driver is loaded, but TensorFlow sees no GPU: set up with '
      '`make .venv CUDA=1`.'
    )
  return ''


def _try_tokenizer() -> str:
  import tensorflow_text as tf_text

  tokenizer = tf_text.FastWordpieceTokenizer(
    ['[UNK]', 'fed', '##fish'], token_out_type='int32', unknown_token='[UNK]'
  )
  found = tokenizer.tokenize(['fedfish']).to_list()
  _expect('a WordPiece tokenizer', [[1, 2]], found)
  return 'cuts a word into its pieces'


def _try_federated() -> str:
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_fedfish.runtime.in_process_context import set_in_process_context

  @tff.tensorflow.computation(np.float32, np.float32)
  def product(a, b):
    return tf.multiply(a, b)

  @tff.tensorflow.computation(np.float32, np.float32)
  def total(a, b):
    return tf.add(a, b)

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def one_round(state, data):
    at_clients = tff.federated_broadcast(state)
    products = tff.federated_map(product, (at_clients, data))
    mean = tff.federated_mean(products)
    return tff.federated_map(total, (state, mean)), mean

  set_in_process_context()
  with warnings.catch_warnings():
    # The context warns where it has to start TFF's second process instead.
    warnings.filterwarnings('error', message='.*in process.*')
    state, mean = one_round(2.0, [1.0, 4.0])
  # Clients: 2 * 1 and 2 * 4, mean 5; the server adds its 2.
  _expect('a federated mean', (7.0, 5.0), (float(state), float(mean)))
  return 'runs a round of two clients'


def _try_beam() -> str:
  import apache_beam as beam
  from apache_beam.options.pipeline_options import PipelineOptions
  from apache_beam.runners.portability.fn_api_runner import FnApiRunner
  from apache_beam.testing.util import assert_that, equal_to

  # Empty options, not none: none would read this process's arguments.
  with beam.Pipeline(FnApiRunner(), PipelineOptions([])) as pipeline:
    sums = (
      pipeline
      | beam.Create([('a', 1), ('b', 2), ('a', 3)])
      | beam.CombinePerKey(sum)
    )
    assert_that(sums, equal_to([('a', 4), ('b', 2)]))
  return 'adds three elements by key'
