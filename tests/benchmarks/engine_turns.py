"""One measured process: sets one variant up, then takes the turns it is told.

Started by `engine_processes`; what it measures goes back as lines of JSON.
"""

import argparse
import importlib
import json
import os
import signal
import socket
import traceback

# Kind -> module and class; its constructor takes the options, and `turn` the
# arguments of a turn.
KINDS = {
  'rounds': ('benchmarks.engine_rounds', 'Rounds'),
  'local_steps': ('benchmarks.engine_steps', 'LocalSteps'),
  'products': ('benchmarks.engine_steps', 'Products'),
  'client_steps': ('benchmarks.engine_batched', 'ClientSteps'),
  'build': ('benchmarks.engine_build', 'Build'),
  'first_calls': ('benchmarks.engine_build', 'FirstCalls'),
  'plan': ('benchmarks.engine_plan', 'Plan'),
  'profile': ('benchmarks.engine_profile', 'Profile'),
  'input': ('benchmarks.engine_input', 'Input'),
  'training': ('benchmarks.engine_input', 'Training'),
}


def main() -> None:
  """Takes turns until the other end of the socket is closed."""
  parser = argparse.ArgumentParser(description=main.__doc__)
  parser.add_argument('--kind', required=True, choices=tuple(KINDS))
  parser.add_argument('--options', required=True, type=json.loads)
  parser.add_argument('--threads', required=True, type=int)
  parser.add_argument('--socket', required=True, type=int)
  arguments = parser.parse_args()
  # TFF's worker process must not keep it open.
  os.set_inheritable(arguments.socket, False)
  # For all processes below it, too.
  cpus = sorted(os.sched_getaffinity(0))[: arguments.threads]
  os.sched_setaffinity(0, cpus)
  module_name, class_name = KINDS[arguments.kind]
  with socket.socket(fileno=arguments.socket) as connection:
    try:
      _limit_threads(arguments.threads)
      subject = getattr(importlib.import_module(module_name), class_name)(
        **arguments.options
      )
      _send(connection, {})
      with connection.makefile('r', encoding='utf-8') as lines:
        for line in lines:
          _send(connection, subject.turn(**json.loads(line)))
      if hasattr(subject, 'close'):
        subject.close()
    except BrokenPipeError:
      pass  # Whoever asked is gone.
    except Exception:
      # Before the socket closes, at which the log is read.
      traceback.print_exc()
      raise SystemExit(1) from None
  if os.getpgrp() == os.getpid():
    # Nobody else would end TFF's worker process.
    os.killpg(os.getpid(), signal.SIGKILL)


def _limit_threads(num_threads: int) -> None:
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(num_threads)
  # As `placement.limit_threads`, which an earlier version does not have.
  tf.config.threading.set_inter_op_parallelism_threads(max(2, num_threads))


def _send(connection: socket.socket, value: dict) -> None:
  connection.sendall(json.dumps(value).encode() + b'\n')


if __name__ == '__main__':
  main()
