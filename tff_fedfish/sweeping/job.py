"""One run from training to its last evaluation, as `fedfish` commands."""

import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, divergence, run_directory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """What a process of its own carries out, and what it leaves behind."""

  name: str
  run: pathlib.Path
  """The run's directory."""
  num_rounds: int
  train: Sequence[str]
  """The command line of `fedfish train`."""
  evaluations: Mapping[pathlib.Path, Sequence[str]]
  """The command line of every `fedfish evaluate`, by its output."""
  log: pathlib.Path
  """What the commands print."""
  config: TrainConfig | None = None
  """What the run must have been trained with; None: not looked at."""
  round_cost: float = 1.0
  """How long a round takes, compared with those of other jobs."""

  def pending_commands(self) -> list[Sequence[str]]:
    """Returns what has not been carried out yet, in order.

    Training is always among them: it continues, or finds that it is done.
    """
    return [self.train] + [
      command
      for output, command in self.evaluations.items()
      if not output.exists()
    ]

  def commands_if_diverged(self) -> list[Sequence[str]] | None:
    """Returns what is left of a run whose training stopped as it diverged.

    Its last good checkpoint is evaluated in place of later ones. None for every
    other run.
    """
    good = self.diverged_checkpoint()
    if good is None:
      return None
    commands = []
    for output, command in self.evaluations.items():
      if not output.exists():
        position = command.index('--checkpoint') + 1
        # Their names sort by round.
        earlier = min(command[position], str(good))
        commands.append(
          [*command[:position], earlier, *command[position + 1 :]]
        )
    return commands

  def diverged_checkpoint(self) -> pathlib.Path | None:
    """Returns the last good checkpoint if training stopped as it diverged."""
    return divergence.diverged_checkpoint(self.run)

  def is_done(self) -> bool:
    """Says whether training has ended and everything is evaluated.

    It has when the last round is saved, or when the run has diverged.
    """
    rounds = checkpoints.list_rounds(self.run / run_directory.CHECKPOINTS_NAME)
    return (
      all(output.exists() for output in self.evaluations)
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

  def last_line_of_log(self) -> str:
    """Returns the last line that the commands printed, '' if none."""
    try:
      lines = self.log.read_text(errors='replace').strip().splitlines()
    except FileNotFoundError:
      return ''
    return lines[-1] if lines else ''

  def failure(self, exit_code: int) -> str:
    """Returns the line that says how the job failed."""
    return (
      f'fedfish: error: the run {self.name} ended with exit code {exit_code}: '
      f'{self.last_line_of_log()} (all of its output: {self.log})'
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
