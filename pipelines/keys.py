"""Keys: what the examples of a group share.

- host: where the record's URL points, in one spelling per server; the rules
  stand in docs/grouping.md.
- domain: the part of the host that can be registered, by the public suffix
  list that the tldextract package carries, private suffixes included
  (`a.github.io` and `b.github.io` are two domains). Hosts without one - IP
  addresses, `localhost`, bare suffixes - stand for themselves, as in `host`.
- owner: the host; on servers that host many projects, with the owner of this
  one. Without it one such server can be the largest client of all by far.
- author: the record's `author`, as it is written.

A record without a URL may have a `domain` instead, as in CC-News. That is taken
as a URL without a scheme, of any host.

Names that are not ASCII, names with escapes and IPv6 addresses are read as
browsers do (https://url.spec.whatwg.org/#host-parsing).
"""

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Callable

from pipelines.source import EXCERPT_BYTES, Drop, RawRecord

# What most URLs look like, and needs nothing but to be cut out. A name whose
# last label begins with a digit may be an address. Possessive: what can be
# taken back would take 65 times the memory of a URL.
_PLAIN_URL = re.compile(
  r'https?://((?:[a-z0-9_-]++\.)*+[a-z_-][a-z0-9_-]*+)(?=[/?#]|\Z)', re.A
)
# All that may stand around a URL in a file: white space and control characters.
_AROUND = '\ufeff' + ''.join(
  character
  for character in map(chr, range(0x3001))
  if unicodedata.category(character) in ('Cc', 'Zs', 'Zl', 'Zp')
)
_URL = re.compile(r'(?:([a-z][a-z0-9+.\-]*):)?//([^/?#]*)', re.I | re.A)
_SCHEMELESS = re.compile('[^/?#]*')
# An IPv6 address in brackets or a name, and the port.
_AUTHORITY = re.compile(r'(\[[^]]*\]|[^]:@[]*)(?::([0-9]*))?', re.A)
_SCHEME_TO_PORT = {'http': 80, 'https': 443, 'ftp': 21, 'ws': 80, 'wss': 443}
_ASCII_NAME = re.compile(r'[a-z0-9_-]++(?:\.[a-z0-9_-]++)*+\.?', re.I | re.A)
_MAX_HOST_CHARACTERS = 253
# With escapes and letters of several bytes.
_MAX_NAME_CHARACTERS = 12 * _MAX_HOST_CHARACTERS
_MAX_PORT = 65535

# Servers where a path starts with the owner's name, or with the project's after
# one of these words ('' for no word). Subdomains of an owner, such as
# owner.github.io, are hosts of their own already.
_HOST_TO_WORDS = dict.fromkeys(
  'bitbucket.org codeberg.org framagit.org git.sr.ht gitee.com github.com '
  'gitlab.com gitlab.freedesktop.org gitlab.gnome.org gitlab.inria.fr '
  'invent.kde.org launchpad.net notabug.org opendev.org '
  'salsa.debian.org'.split(),
  ('',),
) | {
  'code.google.com': ('p', 'archive/p'),
  'savannah.gnu.org': ('projects', 'p'),
  'savannah.nongnu.org': ('projects', 'p'),
  'sourceforge.net': ('projects', 'p', 'apps'),
}
_PATH = re.compile(r'(?:[^/?#]*//)?[^/?#]*([^?#]*)')
# What all of these servers allow in names.
_NAME = re.compile(r'[~.\w-]+', re.A)


def host_key(record: RawRecord) -> bytes:
  """Returns the record's host.

  Raises:
    Drop: missing_url if it has neither URL nor domain, no_host if the URL names
      no host.
  """
  host, port = _location(record)
  return f'{host}{port}'.encode()


def domain_key(record: RawRecord) -> bytes:
  """Returns the record's registrable domain, else its host.

  Raises:
    Drop: As `host_key`.
  """
  host, port = _location(record)
  return (_registrable_domain(host) or f'{host}{port}').encode()


def owner_key(record: RawRecord) -> bytes:
  """Returns the record's host, on shared servers with the owner.

  | URL                                       | key                        |
  |-------------------------------------------|----------------------------|
  | `https://github.com/Owner/project`        | `github.com/owner`         |
  | `https://gitlab.com/group/team/project`   | `gitlab.com/group`         |
  | `http://sourceforge.net/projects/name/`   | `sourceforge.net/name`     |
  | `https://github.com/`                     | `github.com`               |

  Names are taken in lower case, as these servers do.

  Raises:
    Drop: As `host_key`.
  """
  key = host_key(record)
  server = key.decode().removeprefix('www.')
  if server not in _HOST_TO_WORDS:
    return key
  path = _PATH.match(_url(record).strip())[1].strip('/') + '/'
  for word in _HOST_TO_WORDS[server]:
    before = f'{word}/' if word else ''
    if path.startswith(before):
      name = path[len(before) :].partition('/')[0]
      if _NAME.fullmatch(name):
        return f'{server}/{name.lower()}'.encode()
  return key


def author_key(record: RawRecord) -> bytes:
  """Returns the record's author.

  Raises:
    Drop: missing_author if it has none, or a blank one.
  """
  author = record.get('author', '')
  if not author.strip():
    raise Drop('missing_author')
  return author.encode()


KEYS: dict[str, Callable[[RawRecord], bytes]] = {
  'domain': domain_key,
  'host': host_key,
  'owner': owner_key,
  'author': author_key,
}


def _location(record: RawRecord) -> tuple[str, str]:
  """Returns the host, and its port such as ':8080', '' for the scheme's own."""
  if match := _PLAIN_URL.match(record.get('url', '')):
    return match[1], ''
  url = _url(record)
  if not url.strip():
    raise Drop('missing_url')
  if (location := find_location(url)) is None:
    excerpt = url[:EXCERPT_BYTES].encode('utf-8', 'replace')
    raise Drop('no_host', excerpt=excerpt)
  return location


def _url(record: RawRecord) -> str:
  url = record.get('url', '')
  if url.strip():
    return url
  domain = record.get('domain', '').strip(_AROUND)
  return f'//{domain}' if domain and '//' not in domain else domain


def find_location(url: str) -> tuple[str, str] | None:
  """Returns (host, port) of a URL, None if it names no host.

  Args:
    url: A URL as it was found. The scheme may be missing, if the host has a
      registrable domain or is an address: `mailto:a@b.c` has none either.

  Returns:
    An IPv6 address is in brackets. The port is such as ':8080', or '' for the
    scheme's own.
  """
  url = url.strip(_AROUND)
  scheme, authority = '', _SCHEMELESS.match(url)[0]
  if match := _URL.match(url):
    scheme, authority = (match[1] or '').lower(), match[2].rpartition('@')[2]
  if not (parts := _AUTHORITY.fullmatch(authority)):
    return None
  host, digits = _spell(parts[1]), (parts[2] or '').lstrip('0')
  number = int(digits[:6] or 0)
  if not host or number > _MAX_PORT:
    return None
  # Browsers take any number for an address: in a field of URLs it is none.
  if not (match or _is_address(parts[1]) or _registrable_domain(host)):
    return None
  # A URL without a scheme is one of the web.
  is_default = not parts[2] or number == _SCHEME_TO_PORT.get(scheme or 'http')
  return host, '' if is_default else f':{number}'


def _spell(name: str) -> str | None:
  """Returns a name or an address in its one spelling; None if it is none."""
  plain = None
  if _ASCII_NAME.fullmatch(name):
    plain = name.lower().removesuffix('.')
    if not plain.rpartition('.')[2][0].isdigit():
      return plain
  if len(name) > _MAX_NAME_CHARACTERS:
    return plain
  import ada_url

  try:
    # 127.1 and 0x7f.1 are the address 127.0.0.1.
    host = ada_url.URL(f'https://{name}/').hostname
  except ValueError:
    return plain
  host = host.removesuffix('.')
  return host if all(host.split('.')) else plain


def _is_address(name: str) -> bool:
  try:
    ipaddress.ip_address(name.strip('[]'))
  except ValueError:
    return False
  return True


def _registrable_domain(host: str) -> str:
  """Returns the part of a host that can be registered, '' if it has none."""
  return '' if len(host) > _MAX_HOST_CHARACTERS else _find_domain()(host)


@functools.cache
def _find_domain() -> Callable[[str], str]:
  import tldextract

  # No URLs and no cache directory: the list comes from the package itself.
  extract = tldextract.TLDExtract(
    suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True
  ).extract_str
  return functools.lru_cache(maxsize=1 << 17)(
    lambda host: extract(host).top_domain_under_public_suffix
  )
