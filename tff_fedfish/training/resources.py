"""Memory and disk that a run takes, and warnings where there is less."""

import contextlib
import os
import pathlib
import shutil
import sys

from tff_fedfish import environment
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import unknown_tokens
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.errors import UserError
from tff_fedfish.methods.one_shot.uploads import summary_models
from tff_fedfish.planning import client_steps, disk, memory
from tff_fedfish.printing import count, format_bytes
from tff_fedfish.run import cohorts, run_directory
from tff_fedfish.run.divergence import RoundHistory
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training.check import CheckedRun

_NUM_SAMPLED_CLIENTS = 8
_THREADS = 'TF_NUM_INTRAOP_THREADS'


def with_threads(
  config: TrainConfig, workdir: str | os.PathLike
) -> TrainConfig:
  """Fixes TensorFlow's threads, on whose number the last bits depend.

  A run keeps the number that it was started with: that of the run in `workdir`
  or of the config.json it is given, TF_NUM_INTRAOP_THREADS or, without these,
  the cores. Call it before TensorFlow runs anything.
  """
  given = os.environ.get(_THREADS, '')
  # As with TensorFlow, 0 stands for the cores.
  here = int(given) if given.isdecimal() else 0
  here = here or environment.num_cores()
  num_threads = config.resolved.num_threads or here
  # Where it is no run, or a damaged one, the check says so.
  with contextlib.suppress(UserError, OSError):
    kept = run_directory.read_config(workdir).resolved
    num_threads = kept.num_threads or num_threads
  if num_threads != here:
    print(
      f'fedfish: note: the run uses {count(num_threads, "thread")}, as '
      f'config.json says, not {here}: its numbers depend on them.',
      file=sys.stderr,
    )
  os.environ |= thread_variables(num_threads)
  return config.with_values('resolved', num_threads=num_threads)


def thread_variables(num_threads: int) -> dict[str, str]:
  """Returns the environment that gives TensorFlow so many threads.

  Between ops there are at least two: with one, a function that reads a dataset
  may wait for ever for the thread that it runs on.
  """
  return {
    _THREADS: str(num_threads),
    'TF_NUM_INTEROP_THREADS': str(max(2, num_threads)),
  }


def print_warnings(
  config: TrainConfig, workdir: str | os.PathLike | None, checked: CheckedRun
) -> None:
  """Warns on standard error of memory, disk, vocabulary and the cap."""
  needed = memory.run_bytes(_with_whole_cohort(config, checked.split))
  available = environment.memory_bytes()['available']
  _warn(needed, 'memory', available, 'this machine')
  parts = {'checkpoints': checkpoint_bytes(config)}
  if (states := planned_states(config, checked.split)) is not None:
    parts['client states'] = states.peak_bytes or 0
  if (features := planned_features(config, checked)) is not None:
    parts['features'] = features
  if config.method.solve is not None:
    parts['uploads'] = _upload_bytes(config, checked.split)
  place = pathlib.Path(workdir or '.').resolve()
  # What is on the disk already takes no more of it.
  num_saved_bytes = sum(
    path.stat().st_size
    for name in ('checkpoints', 'client_states', 'uploads', 'feature*')
    for path in place.glob(f'{name}/*/*')
  )
  while not place.exists():
    place = place.parent
  available = shutil.disk_usage(place).free + num_saved_bytes
  _warn(
    sum(parts.values()),
    f'disk for {" and ".join(parts)}',
    available,
    f'the disk of {str(place)!r}',
  )
  _warn_of_unknown_tokens(checked)
  if clause := _cap_of_sample(config, checked):
    print(f'fedfish: note: estimate of {clause}.', file=sys.stderr)


def print_fraction_read(config: TrainConfig, history: RoundHistory) -> None:
  """Says at the end of a run how much of its clients' data it has read."""
  epochs = config.client_work.num_local_epochs or 1
  num_read = history.total('train/num_sequences') // epochs
  num_cut = history.total('train/num_dropped_sequences')
  if clause := client_steps.cap_line(config, num_read, num_cut):
    print(f'fedfish: note: {clause}.', file=sys.stderr)


def _cap_of_sample(config, checked):
  """Returns what the cap cuts from some clients of the next round."""
  capped = config.client_work.max_sequences_per_client is not None
  if checked.split is None or not capped or config.method.features is not None:
    return ''
  source, num_read, num_cut = row_source(config), 0, 0
  clients = cohorts.cohort(
    config,
    source.training_clients(checked.split),
    source.training_rows(checked.corpus, checked.tokenizer),
    checked.round_num + 1,
  )
  for client in clients[:_NUM_SAMPLED_CLIENTS]:
    # A client that cannot be read is left out of its round, too.
    with contextlib.suppress(UserError, OSError):
      rows = client.sequences()
      num_read += len(rows)
      num_cut += rows.num_dropped_sequences
  return client_steps.cap_line(config, num_read, num_cut)


def _warn(needed, what, available, where):
  if needed > available:
    print(
      f'fedfish: warning: the run takes up to {format_bytes(needed)} of '
      f'{what}, and {where} has {format_bytes(available)} available.',
      file=sys.stderr,
    )


def _warn_of_unknown_tokens(checked):
  """Judges by the held-out clients that are scored while training."""
  if checked.sample is None:
    return
  fraction = unknown_tokens.fraction_of(
    (halves.evaluation for _, halves in checked.sample.clients),
    checked.tokenizer,
  )
  if unknown_tokens.warning(fraction):
    print(f'fedfish: {unknown_tokens.describe(fraction)}', file=sys.stderr)


def planned_states(
  config: TrainConfig, split: ClientSplit | None
) -> disk.StatesOnDisk | None:
  """Returns the size of the client states; None if there are none."""
  num_clients = None
  if split is not None:
    num_clients = len(row_source(config).training_clients(split))
  return disk.states_on_disk(config, num_clients)


def planned_features(config: TrainConfig, checked: CheckedRun) -> int | None:
  """Returns the bytes of the features; None: there are none, or not known."""
  if config.method.features is None or checked.split is None:
    return None
  return disk.feature_bytes(
    config,
    row_source(config).training_rows(checked.corpus, checked.tokenizer),
    row_source(config).training_clients(checked.split),
  )


def checkpoint_bytes(config: TrainConfig) -> int:
  """Returns the most that a run's checkpoints take on disk.

  That is while the last one is written beside those that are kept. Each holds
  the weights and the server optimizer's moments.
  """
  settings, num_rounds = config.checkpoints, config.training.num_rounds
  # Round 0 and the last, and those between; the best.
  num_kept = 2
  if settings.every_num_rounds:
    num_kept += (num_rounds - 1) // settings.every_num_rounds
  if settings.keep_last:
    num_spaced = 0
    if settings.keep_every_num_rounds:
      num_spaced = num_rounds // settings.keep_every_num_rounds
    num_kept = min(num_kept, 2 + settings.keep_last + num_spaced)
  num_kept += settings.keep_best
  num_moments = config.server.step_cost().num_state_tensors
  model_bytes = sum(memory.tensor_bytes(config.model_shape()).values())
  return num_kept * (1 + num_moments) * model_bytes


def _with_whole_cohort(config, split):
  """Returns a config whose cohort of all clients has its size, for a solver."""
  has_solver = config.method.solve is not None
  if split is None or config.cohort_size is not None or not has_solver:
    return config
  num_clients = len(row_source(config).training_clients(split))
  return config.with_values('cohorts', cohort_size=num_clients)


def _upload_bytes(config, split):
  """Returns the size of the uploads on disk, which are not compressed there."""
  config, shape = _with_whole_cohort(config, split), config.model_shape()
  num_models = 1 + summary_models(shape, config.method.upload(config))
  is_kept = config.algorithm.keeps_uploads
  num_rounds = config.training.num_rounds if is_kept else 1
  model_bytes = sum(memory.tensor_bytes(shape).values())
  num_uploads = num_rounds * (config.cohort_size or 1)
  return int(num_uploads * num_models * model_bytes)
