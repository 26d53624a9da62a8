"""What earlier versions had, and what to do instead; for one release."""

from collections.abc import Sequence

from tff_fedfish.errors import UserError

COMMANDS: dict[str, str] = {}
"""Advice by the name of a command."""

OPTIONS: dict[str, str] = {
  'group --add_to': 'Group the raw files of both together.',
  'group --drop_duplicates_across_groups': 'Remove them from the input.',
  'group --max_dropped_bytes': 'The manifest has one example of each reason.',
  'group --worker_pools': 'Use Spark or Dask, as docs/clusters.md says.',
  'group --write_dropped': 'The manifest has one example of each reason.',
  'plan --group': 'Group a few files, and multiply.',
  'plan --input_bytes': 'Group a few files, and multiply.',
  'plan --num_workers': 'Group a few files, and multiply.',
}
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
