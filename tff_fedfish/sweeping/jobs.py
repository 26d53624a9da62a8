"""Jobs: `fedfish` commands of a run, carried out in processes of their own."""

import collections
import csv
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pprint
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from tff_fedfish import environment, files
from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import client_steps, memory
from tff_fedfish.printing import format_bytes
from tff_fedfish.run import checkpoints, divergence, run_directory
from tff_fedfish.training.interruption import Interruption

INTERRUPTED = (130, 143)
"""Exit codes after SIGINT and SIGTERM."""
CONTINUES = 'fedfish: interrupted; the same command continues.'
"""Line to print after a signal."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """Commands that one process carries out, and the files that they leave."""

  name: str
  run: pathlib.Path
  """The run's directory."""
  num_rounds: int
  train: Sequence[str]
  """The command line of `fedfish train`."""
  evaluations: Mapping[pathlib.Path, Sequence[str]]
  """The command line of every `fedfish evaluate`, by its output."""
  log: pathlib.Path
  """File for the output of the commands."""
  config: TrainConfig | None = None
  """Config that the run must have been trained with. None: not checked."""
  evaluates_diverged: bool = False
  """Whether the last good checkpoint of a diverged run is evaluated in place of
  later ones. False: such a run has failed."""
  round_cost: float = 1.0
  """Duration of a round, compared with those of other jobs."""

  def pending_commands(self) -> list[Sequence[str]]:
    """Returns the commands that are left, in order.

    Training is always one of them: it continues, or finds that it is done.
    """
    return [
      self.train,
      *(self.evaluations[output] for output in self.pending_evaluations()),
    ]

  def commands_if_diverged(self) -> list[Sequence[str]] | None:
    """Returns the commands that are left after training stopped as it diverged.

    None where `evaluates_diverged` is false, and for every other run.
    """
    good = self.diverged_checkpoint() if self.evaluates_diverged else None
    if good is None:
      return None
    commands = [list(command) for command in self.pending_commands()[1:]]
    for command in commands:
      position = command.index('--checkpoint') + 1
      command[position] = str(good)
    return commands

  def pending_evaluations(self) -> list[pathlib.Path]:
    """Returns the outputs of the evaluations that are left."""
    return [output for output in self.evaluations if not output.exists()]

  def diverged_checkpoint(self) -> pathlib.Path | None:
    """Returns the last good checkpoint if training stopped as it diverged."""
    return divergence.diverged_checkpoint(self.run)

  def is_done(self) -> bool:
    """Says whether training has ended and everything is evaluated.

    Training has ended when the last round is saved or the run has diverged.
    """
    rounds = checkpoints.list_rounds(self.run / run_directory.CHECKPOINTS_NAME)
    if self.pending_evaluations() or (
      self.num_rounds not in rounds and self.diverged_checkpoint() is None
    ):
      return False
    try:
      return self.config is None or not config_loading.differences(
        run_directory.read_config(self.run), self.config
      )
    except UserError:
      # `fedfish train` says what is wrong with it.
      return False

  def rounds_and_loss(self) -> tuple[int, float | None]:
    """Reads how many rounds metrics.csv has, and the last one's training loss.

    Returns:
      (rounds, loss in nats per token; None if no round has one).
    """
    try:
      text = (self.run / 'metrics.csv').read_text(errors='replace')
    except FileNotFoundError:
      return 0, None
    # The last line may still be being written.
    lines = [line for line in text.splitlines(True) if line.endswith('\n')]
    if len(lines) < 3:
      # The header and round 0 are no rounds of training.
      return 0, None
    [row] = csv.DictReader([lines[0], lines[-1]])
    try:
      loss = float(row['train/loss'])
    except (KeyError, TypeError, ValueError):
      loss = None
    return len(lines) - 2, loss

  def failure(self, exit_code: int) -> str:
    """Returns the line that says how the job failed."""
    try:
      lines = self.log.read_text(errors='replace').strip().splitlines()
    except FileNotFoundError:
      lines = []
    return (
      f'fedfish: error: the run {self.name} ended with exit code {exit_code}: '
      f'{lines[-1] if lines else ""} (all of its output: {self.log})'
    )


def round_cost(config: TrainConfig) -> int:
  """Returns the steps of a round's clients, to compare durations."""
  steps = client_steps.client_steps(config)
  steps_per_pass = steps.num_local_steps / config.client_work.num_local_epochs
  return round((config.cohort_size or 1) * steps_per_pass * steps.num_passes)


def write_config(job: Job) -> None:
  """Writes the config file that a job's training reads.

  The sweep file may be edited while the sweep runs: every run has a file of
  its own, with every setting resolved.
  """
  values = config_loading.to_json_dict(job.config)
  del values['schema_version']
  values.pop('resolved', None)
  text = pprint.pformat(values, width=74, sort_dicts=False)
  path = pathlib.Path(job.train[job.train.index('--config') + 1])
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.write_atomically(path) as file:
    file.write(
      '"""The config of one run of a sweep, with every setting resolved."""\n\n'
      'from ml_collections import ConfigDict\n\n\n'
      'def get_config():\n'
      f'  return ConfigDict(\n{textwrap.indent(text, "    ")}\n  )\n'
    )


def require_memory(configs: Iterable[TrainConfig], num_jobs: int) -> None:
  """Raises UserError unless any `num_jobs` of the runs fit side by side.

  A single run is not refused: whether to try it is for the user to say.
  """
  sizes = sorted(map(memory.run_bytes, configs), reverse=True)
  num_together = min(num_jobs, len(sizes))
  available = environment.memory_bytes()['available']
  needed = sum(sizes[:num_together])
  if num_together < 2 or needed <= available:
    return
  num_fitting = max(
    (n for n in range(1, num_together) if sum(sizes[:n]) <= available),
    default=1,
  )
  raise UserError(
    f'`--jobs` is {num_jobs}, but {num_together} runs at once take up to '
    f'{format_bytes(needed)} (the largest {format_bytes(sizes[0])}), and '
    f'{format_bytes(available)} of memory are available. Set it to '
    f'{num_fitting}.'
  )


def run_jobs(
  run_command: Callable[[Sequence[str]], int],
  jobs: Iterable[Job],
  num_at_a_time: int,
  on_tick: Callable[[set[str], set[str]], None],
  on_end: Callable[[Job, int], None],
) -> int:
  """Runs the commands that are left of each job, in the given order.

  SIGINT or SIGTERM is passed on once to every running job, which finishes its
  current round; no further job is started, and all have ended on return. A
  second signal kills the running jobs: each loses its current round.

  Args:
    run_command: Runs a command line of `fedfish` and returns its exit code; a
      function of a module, which the processes import.
    jobs: The jobs; the cores are divided among those that run at a time.
    num_at_a_time: Maximum number of running jobs.
    on_tick: Called several times a second with the names of (running, ended)
      jobs.
    on_end: Called with each job that ends by itself, not after a signal, and
      its exit code: that of the first command that failed, 0 if none did or
      the last good checkpoint of a diverged run was evaluated instead.

  Returns:
    130 after SIGINT, 143 after SIGTERM, otherwise 0.
  """
  num_threads = max(1, len(os.sched_getaffinity(0)) // num_at_a_time)
  # Spawned, not forked: TensorFlow does not survive a fork.
  context = multiprocessing.get_context('spawn')
  waiting, running, ended = collections.deque(jobs), {}, set()
  is_told = False
  with Interruption('rounds') as interruption:
    try:
      while running or (waiting and not interruption.requested):
        while waiting and len(running) < num_at_a_time:
          if interruption.requested:
            break
          job = waiting.popleft()
          process = context.Process(
            target=_run_job, args=(run_command, job, num_threads), name=job.name
          )
          process.start()
          running[job.name] = job, process
        if interruption.requested and not is_told:
          for _, process in running.values():
            os.kill(process.pid, interruption.requested)
          is_told = True
        multiprocessing.connection.wait(
          [process.sentinel for _, process in running.values()], timeout=0.2
        )
        for job, process in list(running.values()):
          if process.is_alive():
            continue
          del running[job.name]
          ended.add(job.name)
          process.join()
          if not interruption.requested:
            # Negative: killed by a signal, such as for want of memory.
            on_end(job, 1 if process.exitcode < 0 else process.exitcode)
        on_tick(set(running), set(ended))
    finally:
      # None is left unless the block raised, such as by a second signal.
      for _, process in running.values():
        process.kill()
      for _, process in running.values():
        process.join()
  return interruption.exit_code


def _run_job(run_command, job: Job, num_threads: int) -> None:
  """Runs in the new process; exits with the first code that is not 0."""
  # A terminal's Ctrl-C goes only to the parent, which passes it on.
  os.setpgrp()
  # It ends, cleanly, when its parent is gone.
  threading.Thread(target=_end_with_parent, daemon=True).start()
  job.log.parent.mkdir(parents=True, exist_ok=True)
  log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
  os.dup2(log, 1)
  os.dup2(log, 2)

  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  from tff_fedfish.runtime import placement

  placement.limit_threads(num_threads)
  commands, is_diverged = job.pending_commands(), False
  while commands:
    code = run_command(commands.pop(0))
    if code:
      diverged = code == 1 and not is_diverged
      commands = job.commands_if_diverged() if diverged else None
      if commands is None:
        sys.exit(code)
      is_diverged = True


def _end_with_parent() -> None:
  multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
  os.kill(os.getpid(), signal.SIGTERM)
