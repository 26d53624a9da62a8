"""A run of a sweep: its commands and its files."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from tff_fedfish.config import load, names
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, divergence, run_directory, store
from tff_fedfish.sweeping.grid import Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One training with its evaluations: `fedfish` commands, and their files."""

  name: str
  """Name of its directory; of a search run with 'search/' before it."""
  directory: pathlib.Path
  config: TrainConfig
  evaluations: Mapping[pathlib.Path, Sequence[str]]
  """Command line of every `fedfish evaluate`, by its output."""
  point: Settings
  """Its point of the grid; for a search run only the settings of `per`."""
  rates: Settings = dataclasses.field(default_factory=dict)
  """Learning rates that a search run tries, or that were chosen for an arm."""
  budgets: tuple[str, ...] = ()
  """Budgets that an arm satisfies. Empty for a search run."""
  train_options: tuple[str, ...] = ()
  """Further options of `fedfish train`."""

  @property
  def num_rounds(self) -> int:
    """Rounds of the training."""
    return self.config.training.num_rounds

  @property
  def config_path(self) -> pathlib.Path:
    """File with the config, which the training reads."""
    return self._workdir / 'configs' / f'{self.name}.json'

  @property
  def log(self) -> pathlib.Path:
    """File for what the commands print."""
    return self._workdir / 'logs' / f'{self.name}.log'

  def pending_commands(self) -> list[Sequence[str]]:
    """Returns the command lines that are left, in order.

    Training is always one of them: it continues, or finds that it is done.
    """
    train = ['train', '--config', str(self.config_path)]
    train += ['--workdir', str(self.directory), *self.train_options]
    evaluations = self.evaluations.items()
    return [train, *(line for out, line in evaluations if not out.exists())]

  def progress(self) -> str:
    """Returns how far its process is: `NAME: round 3/30`."""
    try:
      text = (self.directory / 'metrics.csv').read_text('utf-8')
      *_, last = text[: text.rfind('\n')].splitlines()
      round_num = int(last.partition(',')[0])
    except (OSError, ValueError):
      return f'{self.name}: starting'
    if round_num == self.num_rounds:
      return f'{self.name}: evaluating'
    return f'{self.name}: round {round_num:,}/{self.num_rounds:,}'

  def saved_round(self) -> int:
    """Returns the last round that is saved; 0 if there is none."""
    directory = self.directory / store.CHECKPOINTS
    return max(checkpoints.list_rounds(directory), default=0)

  def diverged_checkpoint(self) -> pathlib.Path | None:
    """Returns the last good checkpoint if training stopped as it diverged."""
    return divergence.diverged_checkpoint(self.directory)

  def is_done(self) -> bool:
    """Returns whether training has ended and everything is evaluated.

    Training has ended when the last round is saved, or the run has diverged or
    stopped early.
    """
    if len(self.pending_commands()) > 1 or (
      self.saved_round() != self.num_rounds
      and self.diverged_checkpoint() is None
      and not divergence.has_stopped_early(self.directory, self.saved_round())
    ):
      return False
    try:
      kept = run_directory.read_config(self.directory)
      return names.MAY_MOVE.issuperset(load.differences(kept, self.config))
    except UserError:
      # `fedfish train` says what is wrong with it.
      return False

  @property
  def _workdir(self) -> pathlib.Path:
    return self.directory.parent.parent
