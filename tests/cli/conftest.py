"""The command line as a user meets it, in this process."""

import pytest

from tff_fedfish.cli import main


@pytest.fixture
def fedfish(request, monkeypatch, capsys):
  """Runs the command line; returns (exit code, output, errors).

  Knows only the commands in `COMMANDS` of the test's module, so that what
  others import is not waited for.
  """
  monkeypatch.setattr(main, '_COMMANDS', request.module.COMMANDS)

  def run(*argv):
    try:
      code = main.main([str(argument) for argument in argv])
    except SystemExit as error:
      code = error.code
    return code, *capsys.readouterr()

  return run
