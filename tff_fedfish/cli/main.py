"""`fedfish`: finds the subcommand, runs it, turns errors into exit codes."""

import argparse
import difflib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

from tff_fedfish import environment
from tff_fedfish.cli.options import refuse_unknown
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.progress import never_failing
from tff_fedfish.version import __version__

# In the order in which a user meets them. Each module has `SUMMARY`,
# `add_arguments(parser)` and `run(arguments) -> exit code`, and imports
# nothing heavy at its top. A module with `TAKES_EXTRA` is handed options that
# its parser does not know, and that begin so, as `arguments.extra`, and must
# account for them.
_COMMANDS = {
  name: f'tff_fedfish.cli.{name}'
  for name in (
    *('demo', 'group', 'inspect', 'verify', 'tokenizer', 'tokenize'),
    *('configs', 'methods', 'plan', 'train', 'sweep', 'solve', 'evaluate'),
    *('report', 'generate', 'export', 'doctor'),
  )
}

# Of options whose values are paths.
_PATHS = ('DIR', 'FILE', 'FILE|NAME', 'GLOB', 'PATH', 'RUN')

_EPILOG = """\
Examples:
  fedfish demo
  fedfish train --config configs/demo.py --workdir runs/mine
  fedfish COMMAND --help
"""


class _Parser(argparse.ArgumentParser):
  """Reports an argument error as one line on standard error, exit code 2."""

  def error(self, message: str):
    self.exit(2, f'{self.prog}: error: {message} (see {self.prog} --help)\n')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs `fedfish` and returns its exit code.

  Args:
    argv: Arguments without the program's name; None: those of the process.

  Returns:
    0 done, 1 failed, 2 bad arguments or bad input; 129, 130 or 143
    interrupted.
  """
  # Before TensorFlow is imported: its start-up messages are not the user's.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  # tensorflow_hub, imported by tensorflow_text, still uses it.
  warnings.filterwarnings('ignore', message='pkg_resources is deprecated')
  # The number of a closed one would be given to the next file.
  while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
    pass
  os.close(descriptor)
  sys.stdout = sys.stdout or open(1, 'w', closefd=False)
  sys.stderr = sys.stderr or open(2, 'w', closefd=False)
  if isinstance(sys.stdout, io.TextIOWrapper):
    # As on standard error.
    sys.stdout.reconfigure(errors='backslashreplace')
  sys.stderr = never_failing(sys.stderr)
  try:
    argv = sys.argv[1:] if argv is None else argv
    environment.command = ['fedfish', *argv]
    parser = _build_parser(argv[:1])
    command = argv[0] if argv else ''
    near = difflib.get_close_matches(command, _COMMANDS, n=1)
    if near and command not in _COMMANDS:
      parser.error(f'unknown command {command!r}; did you mean {near[0]!r}?')
    arguments, extra = parser.parse_known_args(argv)
    prefix = arguments.takes_extra
    unknown = [
      text
      for text in extra
      if not prefix or (text.startswith('--') and not text.startswith(prefix))
    ]
    refuse_unknown(arguments.parser, unknown, prefix)
    arguments.extra = extra
    return arguments.run(arguments)
  except UserError as error:
    for line in str(error).splitlines():
      print(f'fedfish: error: {line}', file=sys.stderr)
    return 2
  except KeyboardInterrupt as interruption:
    notes = getattr(interruption, '__notes__', ())
    print(' '.join(['fedfish: interrupted.', *notes]), file=sys.stderr)
    return getattr(interruption, 'exit_code', 130)
  except BrokenPipeError:
    # The reader (`| head`) left, perhaps before the work was done.
    sys.stdout = open(os.devnull, 'w')
    return 1
  except (FailedError, OSError) as error:
    # The machine failed, not the input: a full disk, a file that went away.
    print(f'fedfish: failed: {error}', file=sys.stderr)
    return 1


def _build_parser(commands: Sequence[str]) -> argparse.ArgumentParser:
  """Returns a parser that knows all commands, and the arguments of some.

  Arguments of one command may take a while to import.
  """
  parser = _Parser(
    prog='fedfish',
    description='Federated language-model pretraining with function-space '
    'aggregation.',
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  version = f'fedfish {__version__}'
  parser.add_argument('--version', action='version', version=version)
  subparsers = parser.add_subparsers(
    title='commands', metavar='COMMAND', required=True, parser_class=_Parser
  )
  for name, module_name in _COMMANDS.items():
    module = importlib.import_module(module_name)
    subparser = subparsers.add_parser(
      name,
      help=module.SUMMARY,
      description=module.__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
    )
    subparser.add_argument('--version', action='version', version=version)
    if name in commands:
      module.add_arguments(subparser)
      _expand_paths(subparser)
    subparser.set_defaults(
      run=module.run,
      parser=subparser,
      takes_extra=getattr(module, 'TAKES_EXTRA', ''),
    )
  return parser


def _expand_paths(parser: argparse.ArgumentParser) -> None:
  """Expands `~` in paths, as the shell does not in `--option=~/path`."""
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      for subparser in action.choices.values():
        _expand_paths(subparser)
    elif action.metavar in _PATHS:
      action.type = os.path.expanduser
