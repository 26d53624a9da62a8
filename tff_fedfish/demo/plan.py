"""The demo's `fedfish` command lines that a user could type."""

import dataclasses
import importlib.util
import pathlib

from tff_fedfish import corpora
from tff_fedfish.config import loading as config_loading
from tff_fedfish.sweeping.jobs import Job

PRETRAINING_NAME = 'debian_descriptions'
TRANSFER_NAME = 'sotu_by_president'


@dataclasses.dataclass(frozen=True)
class Arm:
  """One run of the comparison."""

  algorithm: str
  num_local_epochs: int

  @property
  def name(self) -> str:
    """The name of the run's directory, such as 'fed_fish_e8'."""
    return f'{self.algorithm}_e{self.num_local_epochs}'


# Longest first: with two workers the short ones fill the gaps.
ARMS = (
  Arm('fed_fish', 8),
  Arm('fed_avg', 8),
  Arm('fed_fish', 1),
  Arm('fed_avg', 1),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSettings:
  """How large the demo is; smaller in tests."""

  overrides: tuple[str, ...] = ()
  """Further arguments of every `fedfish train`."""
  max_clients: int = 24
  """Clients per evaluation, at most."""
  max_sequences_per_client: int = 16
  """Sequences per client in evaluations, at most; half of them scored."""


def group_commands(workdir: pathlib.Path) -> dict[pathlib.Path, list[str]]:
  """Returns the command that makes each corpus, by its directory."""
  directory = workdir / 'corpora'
  sources = {
    PRETRAINING_NAME: (
      corpora.debian_descriptions() / 'c4-train.*.json.gz',
      'host',
    ),
    TRANSFER_NAME: (corpora.sotu_by_president() / 'sotu.json.gz', 'author'),
  }
  return {
    directory / name: [
      *('group', 'c4', '--input', str(pattern), '--key', key),
      *('--output', str(directory / name)),
    ]
    for name, (pattern, key) in sources.items()
  }


def run_directory(workdir: pathlib.Path, arm: Arm) -> pathlib.Path:
  """Returns where an arm's run lies."""
  return workdir / arm.name


def arm_job(workdir: pathlib.Path, arm: Arm, settings: DemoSettings) -> Job:
  """Returns an arm's training and evaluations."""
  run = run_directory(workdir, arm)
  values = {
    'algorithm.name': arm.algorithm,
    'client_work.num_local_epochs': arm.num_local_epochs,
    'data.directory': workdir / 'corpora' / PRETRAINING_NAME,
    'data.vocabulary': corpora.demo_vocabulary(),
  }
  overrides = [f'--config.{name}={value}' for name, value in values.items()]
  overrides += settings.overrides
  config = config_loading.load_config(config_path(), overrides)
  return Job(
    name=arm.name,
    run=run,
    num_rounds=config.training.num_rounds,
    train=[
      *('train', '--config', str(config_path()), '--workdir', str(run)),
      *overrides,
    ],
    evaluations=_evaluate_commands(workdir, arm, settings),
    log=workdir / 'logs' / f'{arm.name}.log',
  )


def report_command(workdir: pathlib.Path) -> list[str]:
  """Returns the command that writes the page, short runs first."""
  runs = [str(run_directory(workdir, arm)) for arm in reversed(ARMS)]
  return ['report', '--runs', *runs, '--output', str(workdir / 'report')]


def config_path() -> pathlib.Path:
  """Returns configs/demo.py, wherever the package is installed.

  Found, not imported: configs are values that only the command line reads.
  """
  spec = importlib.util.find_spec('configs')
  return pathlib.Path(spec.submodule_search_locations[0]) / 'demo.py'


def _evaluate_commands(
  workdir: pathlib.Path, arm: Arm, settings: DemoSettings
) -> dict[pathlib.Path, list[str]]:
  """Returns the command of each of an arm's evaluations, by its output."""
  run = run_directory(workdir, arm)
  sizes = [
    f'--max_clients={settings.max_clients}',
    f'--max_sequences_per_client={settings.max_sequences_per_client}',
  ]
  commands = {}
  for name, flags in ((PRETRAINING_NAME, ['--barrier']), (TRANSFER_NAME, [])):
    output = run / 'evaluations' / name
    commands[output] = [
      *('evaluate', '--checkpoint', str(run)),
      *('--data', str(workdir / 'corpora' / name)),
      *('--output', str(output), *sizes, *flags),
    ]
  return commands
