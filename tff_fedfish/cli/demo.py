"""Runs everything on the corpora that ship with the project, in minutes.

Example:
  fedfish demo --workdir runs/demo

Groups Debian's package descriptions by web host and State of the Union
addresses by president, trains the `tiny` model with FedAvg and FedFish at 1 and
8 local epochs on the same cohorts, evaluates held-out clients, personalization,
transfer and the Client-Server Barrier, and writes one page. The runs are those
of `fedfish sweep --config demo`. Interrupted, the same command continues.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from tff_fedfish import corpora, environment, files
from tff_fedfish.errors import UserError

SUMMARY = 'see it all on the shipped corpora, in minutes'

PRETRAINING_NAME = 'debian_descriptions'
TRANSFER_NAME = 'sotu_by_president'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish demo`."""
  parser.add_argument(
    '--workdir',
    default='runs/demo',
    metavar='DIR',
    help='where to write, and to continue from (default: %(default)s)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs the demo."""
  return run_demo(arguments.workdir)


def run_demo(
  workdir: str | os.PathLike, overrides: Sequence[str] = (), **sizes: int
) -> int:
  """Carries out what is left of the demo and prints its table.

  Args:
    workdir: New, or of an earlier demo, which is continued.
    overrides: Settings of all runs, as for `fedfish sweep`; fewer rounds in
      tests.
    **sizes: Options of all evaluations, in place of those in configs/demo.py.

  Returns:
    0, or the exit code of the first step that failed or was interrupted.

  Raises:
    UserError: If the directory cannot be used.
  """
  from tff_fedfish.cli.main import main
  from tff_fedfish.config import given
  from tff_fedfish.sweeping import jobs
  from tff_fedfish.sweeping.expand import ARMS, expand_arms
  from tff_fedfish.sweeping.run import run_sweep
  from tff_fedfish.sweeping.sweep_file import read_sweep_file

  workdir = files.require_usable_output(workdir, '--workdir', marker='corpora')
  start = time.monotonic()
  commands = group_commands(workdir)
  for directory, command in commands.items():
    if not (directory / 'manifest.json').exists():
      directory.parent.mkdir(parents=True, exist_ok=True)
      if code := _run_quietly(main, command):
        return code
  pretraining, transfer = map(str, commands)
  file = read_sweep_file(
    given.SHIPPED / 'demo.py',
    [f'--config.data.directory={pretraining}', *overrides],
  )
  evaluations = tuple(
    dataclasses.replace(request, data=request.data and transfer, **sizes)
    for request in file.evaluations
  )
  file = dataclasses.replace(file, evaluations=evaluations)
  num_jobs = min(environment.num_cores(), 2)
  try:
    arms = expand_arms(file, workdir)
    jobs.require_memory([arm.config for arm in arms], num_jobs)
  except UserError:
    num_jobs = 1
  if code := run_sweep(main, file, workdir, num_jobs=num_jobs):
    return code
  # By local epochs, the last digit of a name, then by method.
  arms = sorted((workdir / ARMS).iterdir(), key=lambda run: run.name[::-1])
  runs = [str(arm) for arm in arms]
  report = ['report', '--runs', *runs, '--output', str(workdir / 'report')]
  if code := _run_quietly(main, report):
    return code
  print_results(runs)
  print(f'Page: {workdir / "report" / "index.html"}')
  print(f'Done in {time.monotonic() - start:.0f} s.')
  return 0


def group_commands(workdir: pathlib.Path) -> dict[pathlib.Path, list[str]]:
  """Returns the command that makes each corpus, by its directory."""
  debian = corpora.debian_descriptions() / 'c4-train.*.json.gz'
  sources = {
    PRETRAINING_NAME: (debian, 'host'),
    TRANSFER_NAME: (corpora.sotu_by_president() / 'sotu.json.gz', 'author'),
  }
  return {
    workdir / 'corpora' / name: [
      *('group', 'c4', '--input', str(pattern), '--key', key),
      *('--output', str(workdir / 'corpora' / name)),
    ]
    for name, (pattern, key) in sources.items()
  }


def print_results(runs: Sequence[str]) -> None:
  """Prints the main table of runs, by their directories."""
  from tff_fedfish.printing import print_table
  from tff_fedfish.reporting.loading import load_runs
  from tff_fedfish.reporting.tables import main_table

  print_table(
    'Loss in nats per token, of one seed: not a finding',
    *main_table(load_runs(runs), measures=('loss', 'barrier', 'cost')),
  )


def _run_quietly(main, command: Sequence[str]) -> int:
  """Runs one command here; what it prints is shown only if it fails."""
  print(f'$ fedfish {" ".join(command)}', file=sys.stderr)
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    code = main(command)
  if code:
    print(printed.getvalue(), end='')
  return code
