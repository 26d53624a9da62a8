"""Devices and threads: rounds run on an accelerator if there is one."""

import contextlib
import functools

import tensorflow as tf


@functools.cache
def accelerator() -> str | None:
  """Returns the name of the first GPU of this process, None without one."""
  devices = tf.config.list_logical_devices('GPU')
  return devices[0].name if devices else None


def limit_threads(num_threads: int) -> None:
  """Gives TensorFlow so many threads, before it runs anything.

  Between ops there are at least two: with one, a function that reads a dataset
  may wait for ever for the thread that it runs on.

  Raises:
    RuntimeError: If TensorFlow has begun to use its threads.
  """
  tf.config.threading.set_intra_op_parallelism_threads(num_threads)
  tf.config.threading.set_inter_op_parallelism_threads(max(2, num_threads))


def set_up_devices(*, deterministic_ops: bool = False) -> None:
  """Sets TensorFlow's options of devices, for this process.

  TensorFloat-32 is switched off: GPUs from NVIDIA's A100 on would round the
  factors of float32 products to 10 bits. GPU memory is taken as it is needed,
  unless TensorFlow has begun to use its devices. `deterministic_ops` switches
  to deterministic kernels, which a process cannot take back.
  """
  tf.config.experimental.enable_tensor_float_32_execution(False)
  if deterministic_ops:
    tf.config.experimental.enable_op_determinism()
  for device in tf.config.list_physical_devices('GPU'):
    with contextlib.suppress(RuntimeError, ValueError):
      tf.config.experimental.set_memory_growth(device, True)


def on_accelerator() -> contextlib.AbstractContextManager:
  """Runs the block on the accelerator where it has kernels; results stay."""
  name = accelerator()
  return contextlib.nullcontext() if name is None else tf.device(name)


def on_cpu() -> contextlib.AbstractContextManager:
  """Places tensors and datasets that the block creates on the CPU."""
  return tf.device('CPU:0')
