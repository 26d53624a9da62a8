"""Whatever a run refuses before round 1, its dry run says in a line."""

import contextlib

import pytest
import refused_directories
import refused_images
import refused_inputs
import refused_methods
import refused_runs
import refused_settings

from tff_fedfish.cli.main import main

_CASES = (
  *refused_settings.CASES,
  *refused_methods.CASES,
  *refused_runs.CASES,
  *refused_images.CASES,
  *refused_directories.CASES,
)


@pytest.mark.parametrize('case', _CASES, ids=[case.words for case in _CASES])
def test_a_line_for_each(case, small_inputs, small_run, tmp_path, capsys):
  with contextlib.ExitStack() as stack:
    place = refused_inputs.Place(tmp_path, *small_inputs, small_run, stack)
    arguments = case.prepare(place)
    arguments += ['--workdir', str(place.workdir), '--dry_run']
    before = [*place.workdir.rglob('*')]
    exit_code = main(['train', *arguments])
    assert [*place.workdir.rglob('*')] == before
  lines = capsys.readouterr().err.splitlines()
  errors = [line for line in lines if line.startswith('fedfish: error: ')]
  assert exit_code == 2
  assert len(errors) == case.num_errors, lines
  assert any(case.words in line for line in lines), lines
