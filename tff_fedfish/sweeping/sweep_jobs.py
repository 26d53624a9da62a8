"""Where the runs of a sweep lie, and the commands that make them."""

import pathlib
import pprint
import textwrap
from collections.abc import Sequence

from tff_fedfish import files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.evaluation.personalization_split import MIN_SEQUENCES
from tff_fedfish.planning import client_steps
from tff_fedfish.sweeping.arms import Arm, SearchRun
from tff_fedfish.sweeping.evaluations import EvaluationRequest
from tff_fedfish.sweeping.job import Job
from tff_fedfish.sweeping.learning_rates import LearningRateSearch

ARMS = 'arms'
"""Directory of the runs that are compared."""
SEARCH = 'search'
"""Directory of the search runs."""

_SEARCH_EVALUATION = 'validation'


def arm_job(
  workdir: pathlib.Path, arm: Arm, requests: Sequence[EvaluationRequest]
) -> Job:
  """Returns the job of an arm.

  Args:
    workdir: The sweep's directory.
    arm: The arm.
    requests: The evaluations that follow its training.
  """
  return _job(workdir, ARMS, arm.name, arm, requests)


def search_job(
  workdir: pathlib.Path, run: SearchRun, search: LearningRateSearch
) -> Job:
  """Returns the job of a search run, with the evaluation that it is judged by.

  Args:
    workdir: The sweep's directory.
    run: The search run.
    search: What it belongs to.
  """
  cap = run.config.evaluation.max_sequences_per_client
  request = EvaluationRequest(
    data=None,
    name=_SEARCH_EVALUATION,
    at=('last',),
    options={
      'fractions': (0.0,),
      'max_clients': search.max_clients(run.held_out_fraction),
      'max_sequences_per_client': max(cap, MIN_SEQUENCES) if cap else None,
    },
  )
  return _job(workdir, SEARCH, search_job_name(run), run, [request])


def search_job_name(run: SearchRun) -> str:
  """Returns the name of a search run's job, which differs from all arms'."""
  return f'{SEARCH}/{run.name}'


def search_evaluation(job: Job) -> pathlib.Path:
  """Returns the directory of the evaluation that a search run is judged by."""
  return job.run / 'evaluations' / _SEARCH_EVALUATION


def write_config(job: Job) -> None:
  """Writes the config file that a job's training reads.

  The sweep file may be edited while the sweep runs: every run has a file of
  its own, with every setting resolved.
  """
  path = pathlib.Path(job.train[job.train.index('--config') + 1])
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.write_atomically(path) as file:
    file.write(config_source(job.config))


def config_source(config: TrainConfig) -> str:
  """Returns the text of a config file that gives a config again."""
  values = config_loading.to_json_dict(config)
  del values['schema_version']
  text = pprint.pformat(values, width=74, sort_dicts=False)
  return (
    '"""The config of one run of a sweep, with every setting resolved."""\n\n'
    'from ml_collections import ConfigDict\n\n\n'
    'def get_config():\n'
    f'  return ConfigDict(\n{textwrap.indent(text, "    ")}\n  )\n'
  )


def _job(workdir, directory, job_name, run, requests):
  path = workdir / directory / run.name
  config = run.config
  own_data = config.data.directory
  commands = {}
  for request in requests:
    for name, round_num in request.outputs(run.num_rounds, own_data).items():
      output = path / 'evaluations' / name
      commands[output] = request.command(path, output, round_num, own_data)
  config_file = workdir / 'configs' / f'{job_name}.py'
  steps = client_steps.of_config(config)
  return Job(
    name=job_name,
    run=path,
    num_rounds=run.num_rounds,
    train=['train', '--config', str(config_file), '--workdir', str(path)],
    evaluations=commands,
    log=workdir / 'logs' / f'{job_name}.log',
    config=config,
    round_cost=(config.cohort_size or 1)
    * (steps.num_local_steps + steps.num_steps_after_training),
  )
