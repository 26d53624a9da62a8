"""Jobs: training runs with their evaluations, as `fedfish` commands."""

import csv
import dataclasses
import pathlib
import pprint
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from tff_fedfish import environment, files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import client_steps, memory
from tff_fedfish.printing import format_bytes
from tff_fedfish.run import checkpoints, divergence, run_directory


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
    commands = []
    for output in self.pending_evaluations():
      command = list(self.evaluations[output])
      position = command.index('--checkpoint') + 1
      # Their names sort by round.
      command[position] = min(command[position], str(good))
      commands.append(command)
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
    return (
      not self.pending_evaluations()
      and (self.num_rounds in rounds or self.diverged_checkpoint() is not None)
      and (self.config is None or self._has_config())
    )

  def num_rounds_done(self) -> int:
    """Returns how many rounds metrics.csv has."""
    # The header and round 0 are no rounds of training.
    return max(0, self._metrics().count(b'\n') - 2)

  def last_loss(self) -> float | None:
    """Returns the training loss of the last round, in nats per token."""
    lines = self._metrics().decode('utf-8', 'replace').splitlines(True)
    # The last line may still be being written.
    lines = [line for line in lines if line.endswith('\n')]
    if len(lines) < 3:
      return None
    [row] = csv.DictReader([lines[0], lines[-1]])
    try:
      return float(row['train/loss'])
    except (KeyError, TypeError, ValueError):
      return None

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

  def _has_config(self):
    try:
      found = run_directory.read_config(self.run)
    except UserError:
      # `fedfish train` says what is wrong with it.
      return False
    return not config_loading.differences(found, self.config)

  def _metrics(self):
    try:
      return (self.run / 'metrics.csv').read_bytes()
    except FileNotFoundError:
      return b''


def round_cost(config: TrainConfig) -> int:
  """Returns the steps of a round's clients, to compare durations."""
  steps = client_steps.of_config(config)
  num_steps = steps.num_local_steps + steps.num_steps_after_training
  return (config.cohort_size or 1) * num_steps


def write_config(job: Job) -> None:
  """Writes the config file that a job's training reads.

  The sweep file may be edited while the sweep runs: every run has a file of
  its own, with every setting resolved.
  """
  values = config_loading.to_json_dict(job.config)
  del values['schema_version']
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
