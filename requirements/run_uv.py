"""Runs uv, which reads no pip.conf, with the settings that pip has.

Usage: .venv-uv/bin/python requirements/run_uv.py UV_ARGUMENT...

Indexes, certificates and proxies come from pip's files and `PIP_` variables. No
file of uv's is read; `UV_` variables hold where pip has no setting.
"""

import ast
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# An option of pip's: the variables of uv's, and what is between several values.
_VARIABLES = {
  'index-url': (['UV_DEFAULT_INDEX'], ' '),
  'extra-index-url': (['UV_INDEX'], ' '),
  'find-links': (['UV_FIND_LINKS'], ','),
  'trusted-host': (['UV_INSECURE_HOST'], ' '),
  'client-cert': (['SSL_CLIENT_CERT'], ' '),
  'proxy': (['ALL_PROXY', 'HTTP_PROXY', 'HTTPS_PROXY'], ' '),
  'default-timeout': (['UV_HTTP_TIMEOUT'], ' '),
  'timeout': (['UV_HTTP_TIMEOUT'], ' '),
  'retries': (['UV_HTTP_RETRIES'], ' '),
}
# Of sections, the later one wins, as in pip.
_SECTIONS = ('global', 'install', ':env:')


def pip_settings() -> dict[str, str]:
  """Returns pip's options for `pip install` by name."""
  done = subprocess.run(
    [sys.executable, '-m', 'pip', 'config', 'list'],
    # A quiet pip lists nothing.
    env=os.environ | {'PIP_QUIET': '0'},
    stdout=subprocess.PIPE,
    text=True,
  )
  if done.returncode:
    # pip has said why.
    sys.exit(done.returncode)
  found = {section: {} for section in _SECTIONS}
  for line in done.stdout.splitlines():
    name, _, value = line.partition('=')
    section, _, option = name.rpartition('.')
    if section in found:
      found[section][option] = ast.literal_eval(value)
  return {k: v for options in found.values() for k, v in options.items() if v}


def environment(
  settings: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
  """Returns the environment of uv.

  Args:
    settings: What pip is told, by option.
    variables: The environment of this process.
  """
  result = dict(variables)
  for option, (names, separator) in _VARIABLES.items():
    values = [*map(os.path.expanduser, settings.get(option, '').split())]
    if option == 'find-links':
      # pip passes over directories that do not exist; uv fails.
      values = [v for v in values if '://' in v or os.path.isdir(v)]
    for name in names if values else ():
      result[name] = separator.join(values)
  if 'extra-index-url' in settings:
    # As pip does: any index may have the file with the locked hash.
    result['UV_INDEX_STRATEGY'] = 'unsafe-best-match'
  if 'truststore' in settings.get('use-feature', ''):
    result['UV_SYSTEM_CERTS'] = '1'
  for bundle in (
    settings.get('cert'),
    variables.get('REQUESTS_CA_BUNDLE'),
    variables.get('CURL_CA_BUNDLE'),
  ):
    if bundle:
      bundle = os.path.expanduser(bundle)
      kind = 'DIR' if os.path.isdir(bundle) else 'FILE'
      result[f'SSL_CERT_{kind}'] = bundle
      break
  return result


def _cache(variables: Mapping[str, str]) -> dict[str, str]:
  """Returns a cache in the tree where the usual one cannot be written."""
  if variables.get('UV_CACHE_DIR') or variables.get('UV_NO_CACHE'):
    return {}
  usual = variables.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  try:
    os.makedirs(os.path.join(usual, 'uv'), exist_ok=True)
    with tempfile.TemporaryFile(dir=os.path.join(usual, 'uv')):
      return {}
  except OSError:
    return {'UV_CACHE_DIR': str(_ROOT / '.venv-cache')}


def main(arguments: list[str]) -> None:
  """Becomes uv."""
  settings = pip_settings()
  command = ['uv', '--no-config', *arguments]
  if arguments[0] == 'pip' and settings.get('no-index', '0').lower() not in (
    *('0', 'f', 'false', 'n', 'no', 'off'),
  ):
    command.append('--no-index')
  os.execve(
    pathlib.Path(sys.executable).with_name('uv'),
    command,
    environment(settings, os.environ) | _cache(os.environ),
  )


if __name__ == '__main__':
  main(sys.argv[1:])
