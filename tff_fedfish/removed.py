"""What earlier versions had, and what to do instead; for one release."""

from collections.abc import Sequence

from tff_fedfish.errors import UserError

COMMANDS: dict[str, str] = {}
"""Advice by the name of a command."""

OPTIONS: dict[str, str] = {}
"""Advice by 'command --option'."""

SETTINGS: dict[str, str] = {
  'partition.clusters': 'Leave it out; latent_distributions takes the classes.',
  'partition.examples_per_client': "Read TFF's clients, cifar100.sqlite.",
  'partition.leaf_alpha': "Read TFF's clients, cifar100.sqlite.",
  'partition.num_clusters': 'Leave it out; there is a cluster per class.',
  'partition.root_alpha': "Read TFF's clients, cifar100.sqlite.",
}
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
