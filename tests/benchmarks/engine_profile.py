"""Part of `make bench-engine`: where the time of a round goes, by operation.

One round of the plain loop and one of our engine run under TensorFlow's
profiler, which times every operation on its thread. Operations that run side by
side both count, so that their seconds exceed those of the round.
"""

import collections
import pathlib
import tempfile
import time
from collections.abc import Iterable, Mapping

from benchmarks.engine_figures import Figure, measured
from benchmarks.engine_processes import once
from benchmarks.engine_settings import OURS, PLAIN, Settings, Workload, say

# Kind -> TensorFlow's operations; what is in none is 'other operations'.
KINDS = {
  'matrix products': (
    '_FusedMatMul',
    'BatchMatMulV2',
    'BatchMatMulV3',
    'Einsum',
    'MatMul',
  ),
  'softmax and its gradient': (
    'Exp',
    'LogSoftmax',
    'Max',
    'Softmax',
    'SparseSoftmaxCrossEntropyWithLogits',
  ),
  'activation and norms': (
    'Erf',
    'Rsqrt',
    'RsqrtGrad',
    'Sqrt',
    'SquaredDifference',
    'Tanh',
    'TanhGrad',
  ),
  'sums and products of entries': (
    'AddN',
    'AddV2',
    'BiasAdd',
    'BiasAddGrad',
    'Mean',
    'Mul',
    'Neg',
    'RealDiv',
    'Square',
    'Sub',
    'Sum',
    '_FusedMul',
  ),
  'copies and new shapes': (
    'BroadcastTo',
    'Cast',
    'ConcatV2',
    'Empty',
    'Fill',
    'GatherV2',
    'Identity',
    'Pack',
    'Pad',
    'Reshape',
    'Select',
    'SelectV2',
    'Slice',
    'Split',
    'StridedSlice',
    'StridedSliceGrad',
    'Tile',
    'Transpose',
    'UnsortedSegmentSum',
    'ZerosLike',
  ),
}
OTHER = 'other operations'
_PICOSECONDS = 1e12


class Profile:
  """One engine, of which a round is profiled."""

  def __init__(self, engine: str, workload: dict):
    """Builds the engine and runs a round, so that everything is compiled.

    Args:
      engine: PLAIN or OURS.
      workload: The fields of a `Workload`.
    """
    # Late: the process that asks does without TensorFlow.
    from benchmarks import engine_rounds, plain_loop

    parsed = Workload(**workload)
    self._engine = (
      plain_loop.PlainLoop(parsed)
      if engine == PLAIN
      else engine_rounds.FederatedRounds(engine, parsed)
    )
    self._engine.run_round()

  def turn(self) -> dict:
    """Runs a round under the profiler.

    Returns:
      `seconds`, and `operation_seconds` by TensorFlow's operation.
    """
    import tensorflow as tf

    profiler = tf.profiler.experimental
    options = profiler.ProfilerOptions(
      # 3: cheap operations, too.
      host_tracer_level=3,
      python_tracer_level=0,
      device_tracer_level=0,
    )
    with tempfile.TemporaryDirectory() as directory:
      profiler.start(directory, options=options)
      start = time.perf_counter()
      self._engine.run_round()
      seconds = time.perf_counter() - start
      profiler.stop()
      (path,) = pathlib.Path(directory).rglob('*.xplane.pb')
      operations = operation_seconds(_read(path))
    return {'seconds': seconds, 'operation_seconds': operations}


def profile(settings: Settings) -> list[Figure]:
  """Shares of operations by kind, in the plain loop and in ours."""
  part, figures = 'profile', []
  for engine in (PLAIN, OURS):
    options = {'engine': engine, 'workload': settings.workload}
    turn = once(settings, 'profile', options)
    seconds, operations = turn['seconds'], turn['operation_seconds']
    total = sum(operations.values())
    say(f'{engine}: {seconds:.2f} s, {total:.2f} s of operations')
    figures += [
      measured(part, f'{engine}: a round', [seconds], 's'),
      measured(part, f'{engine}: operations / round', [total / seconds], 's/s'),
    ]
    for kind, kind_seconds in by_kind(operations).items():
      names = [name for name in operations if kind_of(name) == kind]
      figures.append(
        measured(
          part,
          f'{engine}: {kind}',
          [100 * kind_seconds / total],
          '%',
          note=_dearest(names, operations, total),
        )
      )
  return figures


def kind_of(operation: str) -> str:
  """Returns the key of KINDS for an operation, or OTHER."""
  for kind, operations in KINDS.items():
    if operation in operations:
      return kind
  return OTHER


def by_kind(operation_to_seconds: Mapping[str, float]) -> dict[str, float]:
  """Returns seconds by kind, in the order of KINDS, OTHER last."""
  seconds = dict.fromkeys([*KINDS, OTHER], 0.0)
  for operation, value in operation_to_seconds.items():
    seconds[kind_of(operation)] += value
  return seconds


def operation_seconds(space) -> dict[str, float]:
  """Returns seconds by operation, summed over the host's threads.

  Args:
    space: An `XSpace`. An event `name:Operation` is one operation; one that
      runs within another on the same thread counts for itself alone.
  """
  totals = collections.Counter()
  for plane in space.planes:
    if plane.name != '/host:CPU':
      continue
    names = {key: value.name for key, value in plane.event_metadata.items()}
    for line in plane.lines:
      events = [
        (event.offset_ps, event.duration_ps, _operation(names, event))
        for event in line.events
      ]
      for operation, duration in own_durations(
        event for event in events if event[2]
      ):
        totals[operation] += duration / _PICOSECONDS
  return dict(totals.most_common())


def own_durations(
  events: Iterable[tuple[int, int, str]],
) -> list[tuple[str, int]]:
  """Returns each event's name and duration without what runs within it.

  Args:
    events: (start, duration, name) on one thread; nested or apart.
  """
  results, open_events = [], []
  for start, duration, name in sorted(
    events, key=lambda event: (event[0], -event[1])
  ):
    while open_events and open_events[-1][0] <= start:
      open_events.pop()
    if open_events:
      results[open_events[-1][1]][1] -= duration
    open_events.append((start + duration, len(results)))
    results.append([name, duration])
  return [tuple(result) for result in results]


def _operation(names, event) -> str:
  """Returns the operation of an event, '' if it is none."""
  name, _, operation = names[event.metadata_id].split('#')[0].rpartition(':')
  # A function of TensorFlow's own code is `Class::function`.
  is_operation = name and not name.endswith(':')
  return operation if is_operation and operation.isidentifier() else ''


def _dearest(names, operation_to_seconds, seconds) -> str:
  """Names the three operations that take most, with their shares."""
  dearest = sorted(names, key=operation_to_seconds.get, reverse=True)[:3]
  return ', '.join(
    f'{name} {100 * operation_to_seconds[name] / seconds:.1f}'
    for name in dearest
  )


def _read(path: pathlib.Path):
  from tensorflow.tsl.profiler.protobuf import xplane_pb2

  return xplane_pb2.XSpace.FromString(path.read_bytes())
