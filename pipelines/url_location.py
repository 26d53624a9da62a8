"""Host and port of a URL, in one spelling per server.

The rules stand in docs/grouping.md. They follow RFC 3986 for the parts of
a URL, RFC 5952 for IPv6 addresses, and UTS #46 with Punycode (RFC 3492) for
names that are not ASCII, as browsers do.
"""

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

_DEFAULT_PORTS = {
  # A URL without a scheme is one of the web.
  '': 80,
  'http': 80,
  'https': 443,
  'ftp': 21,
  'ws': 80,
  'wss': 443,
}

# All that may stand around a URL in a file: white space and control characters.
_AROUND = (
  ''.join(
    character
    for character in map(chr, range(0x3001))
    if unicodedata.category(character) in ('Cc', 'Zs', 'Zl', 'Zp')
  )
  + '\ufeff'
)
_URL = re.compile(r'(?:([a-z][a-z0-9+.\-]*):)?//([^/?#]*)', re.I | re.A)
_SCHEMELESS = re.compile('[^/?#]*')
_PORT = re.compile('0*([0-9]{0,5})', re.A)
# The full stops of UTS #46.
_DOTS = re.compile('[.\u3002\uff0e\uff61]')
# What no host can hold: the delimiters of a URL, white space, control
# characters, and halves of characters.
_FORBIDDEN = re.compile(r'[\s\x00-\x1f\x7f-\x9f\ud800-\udfff#/:<>?@\[\\\]^|%]')
_ESCAPES = re.compile('(?:%[0-9a-f]{2})+', re.I)
_MAX_LABEL_CHARACTERS = 63
_MAX_HOST_CHARACTERS = 253


class Location(NamedTuple):
  """Location of a server.

  Attributes:
    host: Name or address; an IPv6 address is in brackets.
    port: ':8080', or '' for the scheme's own port.
  """

  host: str
  port: str


def find_location(url: str, *, is_web: bool = False) -> Location | None:
  """Returns where a URL points, None if it names no host.

  Args:
    url: A URL as it was found; the scheme may be missing.
    is_web: Whether what has no scheme is known to begin with a host. Otherwise
      it needs a registrable domain or an IP address, since `mailto:a@b.c` and
      `about.html` have none either.
  """
  url = url.strip(_AROUND)
  if match := _URL.match(url):
    scheme, authority = (match[1] or '').lower(), match[2]
    return _location(authority.rpartition('@')[2], scheme)
  authority = _SCHEMELESS.match(url)[0]
  location = _location(authority, '')
  if location is None or is_web or _is_address(location.host):
    return location
  return location if registrable_domain(location.host) else None


def registrable_domain(host: str) -> str:
  """Returns the part of a host that can be registered, '' if it has none.

  Args:
    host: The `host` of a `Location`.
  """
  if len(host) > _MAX_HOST_CHARACTERS:
    return ''
  return _cached_domain(host)


def _location(authority: str, scheme: str) -> Location | None:
  if authority.startswith('['):
    host, bracket, port = authority[1:].partition(']')
    if not bracket or (port and port[0] != ':'):
      return None
    host, port = _ipv6(host), port[1:]
  else:
    host, _, port = authority.partition(':')
    host = _name(host)
  if host is None or not (match := _PORT.fullmatch(port)):
    return None
  number = int(match[1] or 0)
  if number > 65535:
    return None
  if not port or number == _DEFAULT_PORTS.get(scheme):
    return Location(host, '')
  return Location(host, f':{number}')


def _ipv6(address: str) -> str | None:
  try:
    found = ipaddress.IPv6Address(address)
  except ValueError:
    return None
  # A zone, as in `fe80::1%eth0`, is a cable of one machine.
  return None if found.scope_id else f'[{found.compressed}]'


def _name(host: str) -> str | None:
  """Returns a name or an IPv4 address in its one spelling."""
  if '%' in host:
    try:
      host = _ESCAPES.sub(_unescape, host)
    except UnicodeDecodeError:
      return None
  if host.isascii():
    host = host.lower()
  else:
    host = '.'.join(map(_spell_label, _DOTS.split(host)))
  host = host.removesuffix('.')
  if _FORBIDDEN.search(host) or not all(host.split('.')):
    return None
  return host


def _unescape(match: re.Match) -> str:
  return bytes.fromhex(match[0].replace('%', '')).decode()


def _spell_label(label: str) -> str:
  """Returns one label of a name that is not ASCII as a whole."""
  import idna

  try:
    mapped = idna.uts46_remap(label, std3_rules=False)
  except idna.IDNAError:
    # It has a character that no host name may have; nothing is known to mean
    # the same but its lower case.
    lower = label.lower()
    return label if lower == label else _spell_label(lower)
  if '.' in mapped:
    return '.'.join(map(_spell_label, mapped.split('.')))
  # Longer ones cannot be registered, and Punycode takes quadratic time.
  if mapped.isascii() or len(mapped) > _MAX_LABEL_CHARACTERS:
    return mapped
  encoded = f'xn--{mapped.encode("punycode").decode("ascii")}'
  return encoded if len(encoded) <= _MAX_LABEL_CHARACTERS else mapped


@functools.lru_cache(maxsize=1 << 17)
def _cached_domain(host: str) -> str:
  return _extract_domain()(host).top_domain_under_public_suffix


def _is_address(host: str) -> bool:
  try:
    ipaddress.ip_address(host.strip('[]'))
  except ValueError:
    return False
  return True


@functools.cache
def _extract_domain() -> Callable:
  import tldextract

  # No URLs and no cache directory: the list comes from the package itself.
  return tldextract.TLDExtract(
    suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True
  ).extract_str
