"""The Containerfile: files that exist, a pinned base, a user without rights."""

import pathlib
import re

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def _instructions():
  """Returns (instruction, arguments) of each line, continued lines joined."""
  text = (_ROOT / 'containers' / 'Containerfile').read_text('utf-8')
  lines = re.sub(r'^#.*\n', '', text, flags=re.MULTILINE)
  lines = lines.replace('\\\n', ' ').splitlines()
  return [tuple(line.split(maxsplit=1)) for line in lines if line]


def test_copied_files_exist():
  copied = [
    source
    for instruction, arguments in _instructions()
    if instruction == 'COPY'
    for source in arguments.split()[:-1]
    if not source.startswith('--')
  ]
  assert {'requirements', 'tff_fedfish', 'setup.py'} <= set(copied)
  for source in copied:
    assert (_ROOT / source).exists(), source


def test_targets_are_set_up_from_their_locks():
  target, locks = None, {}
  for instruction, arguments in _instructions():
    if instruction == 'FROM':
      target = arguments.rpartition(' AS ')[2]
    elif 'set_up.sh' in arguments:
      script, locks[target] = arguments.split()
      assert (_ROOT / script).is_file()
  assert locks == {'cpu': 'requirements.lock', 'cuda': 'requirements-cuda.lock'}


def test_base_is_pinned_and_nothing_is_fetched_by_address():
  bases = [a.split()[0] for i, a in _instructions() if i == 'FROM']
  assert re.fullmatch(r'python:3\.11\.\d+-slim-\w+', bases[0])
  # The others are stages of this file.
  assert set(bases[1:]) == {'source'}
  assert 'ADD' not in dict(_instructions())
  assert not [a for _, a in _instructions() if '://' in a]


def test_nobody_is_root():
  instructions = _instructions()
  users = [arguments for i, arguments in instructions if i == 'USER']
  assert users == ['1000']
  first_set_up = next(
    n
    for n, (_, arguments) in enumerate(instructions)
    if 'set_up.sh' in arguments
  )
  assert instructions.index(('USER', '1000')) < first_set_up
