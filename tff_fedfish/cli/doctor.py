"""Show versions, devices, memory, and what works here and what does not.

Examples:
  fedfish doctor

Exits with 0 if everything needed works, with 1 if something does not.
"""

import argparse
import importlib.metadata
import logging
import pathlib
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

SUMMARY = 'show what works on this machine, with remedies for what does not'

_GIB = 1 << 30
# What `fedfish demo` needs, with some room.
_MIN_MEMORY_GIB, _MIN_DISK_GIB = 6, 2
_SET_UP = 'Set up again: remove .venv, then `requirements/set_up.sh`.'


class Finding(NamedTuple):
  """Result of one check."""

  name: str
  text: str
  """Observation, in one line."""
  remedy: str = ''
  """Empty if all is well."""
  severity: Literal['warning', 'problem'] = 'problem'
  """'problem': without the remedy nothing works."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish doctor`: none."""


def run(arguments: argparse.Namespace) -> int:
  """Runs the checks and prints each finding as soon as it is there."""
  from tff_fedfish.version import __version__

  print(f'fedfish {__version__}')
  usable, disabled = True, logging.root.manager.disable
  # What packages say about each other has no remedy here.
  logging.disable(logging.WARNING)
  try:
    with warnings.catch_warnings(action='ignore'):
      for name, text, remedy, severity in examine():
        status = severity if remedy else 'ok'
        usable &= status != 'problem'
        print(f'{status:<8}{name}: {text}', flush=True)
        if remedy:
          print(f'{"":8}-> {remedy}', flush=True)
  finally:
    logging.disable(disabled)
  print('Ready.' if usable else 'Not usable: see the problems above.')
  return 0 if usable else 1


def examine() -> Iterator[Finding]:
  """Yields one finding after the other; the later checks take seconds."""
  from tff_fedfish import environment

  python = sys.version_info[:2], sys.platform, platform.machine()
  remedy = ''
  if python != ((3, 11), 'linux', 'x86_64'):
    remedy = 'Use Python 3.11 on Linux x86-64: nothing else has all packages.'
  text = f'Python {platform.python_version()}, {platform.platform()}'
  yield Finding('platform', text, remedy)
  yield _packages(environment.package_versions())
  cpu, cores = environment.cpu_model(), environment.num_cores()
  yield Finding('processor', f'{cpu}, {cores} cores')
  memory = environment.memory_bytes()['available']
  yield _room('memory', memory, _MIN_MEMORY_GIB)
  free = shutil.disk_usage(pathlib.Path.cwd()).free
  yield _room('disk of the current directory', free, _MIN_DISK_GIB)
  # Without the instructions it is built for, TensorFlow would end the process.
  flags = environment.cpu_flags()
  if flags and 'avx' not in flags:
    remedy = 'Use a processor with AVX: TensorFlow is built for it.'
    yield Finding('instructions', 'no AVX', remedy)
    return
  yield _attempt('TensorFlow', _try_tensorflow)
  devices = _attempt('devices', lambda: ', '.join(environment.devices()))
  has_driver = pathlib.Path('/proc/driver/nvidia/version').exists()
  if has_driver and 'GPU' not in devices.text and not devices.remedy:
    remedy = 'TensorFlow does not see the GPU: set up by `make .venv CUDA=1`.'
    devices = Finding('devices', devices.text, remedy, 'warning')
  yield devices
  yield _attempt('TFF in process', _try_federated)
  yield _attempt('Beam in process', _try_beam)


def _packages(versions):
  """Compares installed versions with those that the project pins."""
  try:
    requirements = importlib.metadata.requires('tff-fedfish') or []
  except importlib.metadata.PackageNotFoundError:
    requirements = []
  parts = (requirement.partition('==') for requirement in requirements)
  pinned = {name.strip(): version for name, _, version in parts if version}
  wrong = [
    f'{name} is {version or "missing"}'
    + (f', not {pinned[name]}' if name in pinned else '')
    for name, version in versions.items()
    if version is None or version != pinned.get(name, version)
  ]
  listed = ', '.join(f'{name} {version}' for name, version in versions.items())
  text = '; '.join(wrong) or listed
  return Finding('packages', text, _SET_UP if wrong else '')


def _room(name, free_bytes, min_gib):
  free = free_bytes / _GIB
  remedy = (
    '' if free >= min_gib else f'Free some: the demo needs {min_gib} GiB.'
  )
  return Finding(name, f'{free:.1f} GiB free', remedy, 'warning')


def _attempt(name: str, action: Callable[[], str]) -> Finding:
  """Runs a check, which says what works or raises."""
  try:
    return Finding(name, action())
  # Whatever a broken installation raises is a finding, not a crash.
  except Exception as error:
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    return Finding(name, text[:300], _SET_UP)


def _try_tensorflow():
  import tensorflow as tf

  # Built for one version of TensorFlow.
  import tensorflow_text  # noqa: F401

  product = tf.linalg.matmul([[1.0, 2.0]], [[3.0], [4.0]])
  return f'1 x 3 + 2 x 4 = {float(product):g}'


def _try_federated():
  import numpy as np
  import tensorflow_federated as tff

  from tff_fedfish.runtime.in_process_context import set_in_process_context

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def mean(state, values):
    return state, tff.federated_mean(values)

  set_in_process_context()
  with warnings.catch_warnings():
    # The context warns where it has to start TFF's second process instead.
    warnings.filterwarnings('error', message='.*in process.*')
    _, found = mean(0.0, [1.0, 4.0])
  return f'federated mean of 1 and 4: {float(found):g}'


def _try_beam():
  import apache_beam as beam
  from apache_beam.options.pipeline_options import PipelineOptions
  from apache_beam.runners.portability.fn_api_runner import FnApiRunner
  from apache_beam.testing.util import assert_that, equal_to

  # Empty options, not none: none would read this process's arguments.
  with beam.Pipeline(FnApiRunner(), PipelineOptions([])) as pipeline:
    pairs = pipeline | beam.Create([('a', 1), ('b', 2), ('a', 3)])
    assert_that(pairs | beam.CombinePerKey(sum), equal_to([('a', 4), ('b', 2)]))
  return 'sums by key: right'
