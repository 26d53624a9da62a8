"""Keys: what the examples of a group share.

- host: the URL's network location in lower case, without user information,
  without a final dot, and with the port only where it is not the scheme's own
  (another port is another server). `www.` stays.
- domain: the part of the host that can be registered, by the public suffix
  list that the tldextract package carries, private suffixes included
  (`a.github.io` and `b.github.io` are two domains). Hosts without one - IP
  addresses, `localhost`, bare suffixes - stand for themselves, as in `host`.
- author: the record's `author`, as it is written.
"""

import functools
import urllib.parse
from collections.abc import Callable

from pipelines.source import Drop, RawRecord

_DEFAULT_PORTS = {'http': 80, 'https': 443, 'ftp': 21}


def host_key(record: RawRecord) -> bytes:
  """Returns the record's host.

  Raises:
    Drop: missing_url if it has no URL, no_host if the URL names no host.
  """
  hostname, port = _location(record)
  return f'{hostname}{port}'.encode()


def domain_key(record: RawRecord) -> bytes:
  """Returns the record's registrable domain, else its host.

  Raises:
    Drop: As `host_key`.
  """
  hostname, port = _location(record)
  domain = _extract_domain()(hostname).top_domain_under_public_suffix
  return (domain or f'{hostname}{port}').encode()


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
  'author': author_key,
}


def _location(record: RawRecord) -> tuple[str, str]:
  """Returns (host name, ':port' or '')."""
  url = record.get('url', '').strip()
  if not url:
    raise Drop('missing_url')
  try:
    parts = urllib.parse.urlsplit(url)
    hostname, port = parts.hostname, parts.port
  except ValueError as error:
    # A bracket that is not closed, or a port that is no number.
    raise Drop('no_host') from error
  hostname = (hostname or '').removesuffix('.')
  if not hostname:
    raise Drop('no_host')
  if ':' in hostname:
    # `urlsplit` takes the brackets off an IPv6 address.
    hostname = f'[{hostname}]'
  if port is None or port == _DEFAULT_PORTS.get(parts.scheme):
    return hostname, ''
  return hostname, f':{port}'


@functools.cache
def _extract_domain() -> Callable:
  import tldextract

  # No URLs and no cache directory: the list comes from the package itself.
  return tldextract.TLDExtract(
    suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True
  ).extract_str
