"""Whatever a run refuses before round 1, its dry run says in a line.

The places where `fedfish train` can refuse something are found over the syntax
trees; each is reached here by a bad input and the real command.
"""

import contextlib
import io
import sys
from typing import NamedTuple

import pytest
import raise_sites
import refused_corpora
import refused_directories
import refused_images
import refused_inputs
import refused_methods
import refused_runs
import refused_settings

from tff_fedfish.cli.main import main
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.errors import UserError, UserErrors

_STARTS = (
  ('tff_fedfish.cli.train', 'run'),
  # Round 1 begins by starting the workers.
  ('tff_fedfish.runtime.ray_cluster', 'join'),
  ('tff_fedfish.runtime.ray_cluster', 'share_of_worker'),
)
# Round 1, and what follows it.
_STOPS = {
  ('tff_fedfish.training.round_loop', '_RoundLoop.run'),
  ('tff_fedfish.run.kept_inputs', 'KeptInputs.inputs_of'),
  # Of runs in phases, which take some: test_tct_runs.py has their refusals.
  ('tff_fedfish.run.feature_files', 'verify'),
  ('tff_fedfish.run.feature_files', 'entries'),
  ('tff_fedfish.run.start_model', '_require_network'),
  # Of hosts of a cluster, which takes some: tests/cluster/test_ray.py.
  ('tff_fedfish.runtime.ray_hosts', 'require_same'),
}

# What no dry run shows, as 'module function', at most five, and why.
_NOT_SHOWN = {
  'tff_fedfish.runtime.ray_cluster join': 'a process of `fedfish train` joins '
  'one cluster; only a program that uses several can be refused',
  'tff_fedfish.runtime.ray_cluster share_of_worker': 'what a cluster has is '
  'known once it is joined or started, which takes seconds and processes',
  'tff_fedfish.runtime.ray_cluster _connect': 'that something listens at the '
  'address is checked; that it is a Ray of the same version, by joining it',
  'tff_fedfish.run.learning_setup require_declared_process': 'what a '
  "method's builder returns is known once it has built the process",
  'tff_fedfish.run.learning_setup require_tensors': 'the tensors of a '
  "method's state are known once TFF has built the process; that corpus, "
  'vocabulary and settings are those of the checkpoint is checked before',
}

_CASES = (
  *refused_settings.CASES,
  *refused_methods.CASES,
  *refused_runs.CASES,
  *refused_corpora.CASES,
  *refused_images.CASES,
  *refused_directories.CASES,
)


class _Shown(NamedTuple):
  """Outcome of one dry run."""

  exit_code: int
  lines: list[str]
  """Lines of standard error."""
  sites: set[raise_sites.Site]
  """Places where the errors in these lines were made."""


@pytest.fixture(scope='module')
def sites():
  return set().union(*(raise_sites.find(s, stops=_STOPS) for s in _STARTS))


@pytest.fixture(scope='module')
def dry_run(sites, small_inputs, small_run, small_kept_run, tmp_path_factory):
  """Returns a function that makes the dry run of a case, once."""
  done = {}
  lines_of = {}
  for site in sites:
    for line in range(site.first_line, site.last_line + 1):
      lines_of[site.module, line] = site

  def site_of(frame):
    # A function that only makes the error is called where it is raised.
    while frame is not None:
      site = lines_of.get((frame.f_globals.get('__name__'), frame.f_lineno))
      if site:
        return site
      frame = frame.f_back
    return None

  def run(number):
    if number in done:
      return done[number]
    made = []

    def init(error, *arguments):
      Exception.__init__(error, *arguments)
      made.append((error, site_of(sys._getframe(1))))

    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
      place = refused_inputs.Place(
        tmp_path_factory.mktemp('refused'),
        *small_inputs,
        small_run,
        small_kept_run,
        stack,
      )
      arguments = _CASES[number].prepare(place)
      arguments += ['--workdir', str(place.workdir), '--dry_run']
      patch = stack.enter_context(pytest.MonkeyPatch.context())
      patch.setattr(UserError, '__init__', init, raising=False)
      stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
      stack.enter_context(contextlib.redirect_stderr(printed))
      exit_code = main(['train', *arguments])
    text = printed.getvalue()
    found = {site for error, site in made if site and _is_said(error, text)}
    done[number] = _Shown(exit_code, text.splitlines(), found)
    return done[number]

  return run


def _is_said(error, text):
  """Whether what an error says was printed, by itself or as part of another."""
  if isinstance(error, ConfigError):
    parts = error.problems
  elif isinstance(error, UserErrors):
    parts = map(str, error.errors)
  else:
    # Where another checkpoint is used, the remedy is left out; so is that of a
    # partition which a config describes.
    parts = [getattr(error, 'problem', str(error)).removesuffix(' Change it.')]
  return all(_plain(part.removesuffix('.')) in _plain(text) for part in parts)


def _plain(text):
  # A config names the settings of its partition in full.
  return text.replace('`config.partition.', '`partition.')


@pytest.mark.parametrize(
  'number', range(len(_CASES)), ids=[case.words for case in _CASES]
)
def test_a_line_for_each(number, dry_run):
  case, shown = _CASES[number], dry_run(number)
  errors = [line for line in shown.lines if line.startswith('fedfish: error: ')]
  assert shown.exit_code == 2
  assert len(errors) == case.num_errors, shown.lines
  assert any(case.words in line for line in shown.lines), shown.lines
  assert shown.sites, errors


def test_every_refusal_is_shown(sites, dry_run):
  shown = set().union(*(dry_run(number).sites for number in range(len(_CASES))))
  missing = {
    site
    for site in sites - shown
    if f'{site.module} {site.function}' not in _NOT_SHOWN
  }
  assert not missing, '\n' + '\n'.join(sorted(map(str, missing)))


def test_at_most_five_are_not_shown(sites):
  not_shown = [
    site for site in sites if f'{site.module} {site.function}' in _NOT_SHOWN
  ]
  assert len(not_shown) <= 5
  # None is named that is not there any more.
  assert len({site.function for site in not_shown}) == len(_NOT_SHOWN)
