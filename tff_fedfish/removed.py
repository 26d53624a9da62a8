"""What earlier versions had, and what to do instead; for one release."""

from collections.abc import Sequence

from tff_fedfish.errors import UserError

COMMANDS: dict[str, str] = {
  'laboratory': 'Run docs/examples/weightings_in_one_round.py.',
  'toy': 'Run the script that docs/toy.md names.',
}
"""Advice by the name of a command."""

OPTIONS: dict[str, str] = {}
"""Advice by 'command --option'."""

SETTINGS: dict[str, str] = {}
"""Advice by 'section.setting' of a config."""


def require_current(arguments: Sequence[str]) -> None:
  """Raises UserError if a command line has a command or option that went."""
  command = arguments[0] if arguments else ''
  if command in COMMANDS:
    raise UserError(f'`{command}` was removed. {COMMANDS[command]}')
  for argument in arguments[1:]:
    option = argument.partition('=')[0]
    if advice := OPTIONS.get(f'{command} {option}'):
      raise UserError(f'`{option}` was removed. {advice}')
