r"""List the federated methods, their settings, traffic and sources.

Examples:
  fedfish methods
  fedfish methods fed_fish
  fedfish methods --json

NAME may also be the module of a method of your own, such as
my_package.my_method.
"""

import argparse
import json

SUMMARY = 'list the methods and their settings'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish methods`."""
  parser.add_argument(
    'name', nargs='?', metavar='NAME', help='a method; without it, all methods'
  )
  form = parser.add_mutually_exclusive_group()
  form.add_argument('--json', action='store_true', help='print JSON')
  form.add_argument(
    '--markdown', action='store_true', help='print a Markdown page'
  )


def run(arguments: argparse.Namespace) -> int:
  """Prints the methods; returns the exit code."""
  from tff_fedfish.methods import describe, registry
  from tff_fedfish.printing import print_facts

  if arguments.name is None:
    methods = registry.BUILT_IN.values()
  else:
    methods = [registry.find(arguments.name)]
  if arguments.json:
    found = [describe.to_json_dict(method) for method in methods]
    print(json.dumps(found if arguments.name is None else found[0], indent=2))
  elif arguments.name is not None:
    print(describe.section(methods[0], arguments.name))
  elif arguments.markdown:
    print(describe.to_markdown(methods), end='')
  else:
    lines = [(m.name, f'{m.title}: {describe.summary_of(m)}') for m in methods]
    print_facts(lines)
  return 0
