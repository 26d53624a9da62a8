r"""Keys: what the examples of a group share.

- host: where the record's URL points, in one spelling per server (below).
- domain: the part of the host that can be registered, by the public suffix
  list that the tldextract package carries, private suffixes included
  (`a.github.io` and `b.github.io` are two domains). Hosts without one - IP
  addresses, `localhost`, bare suffixes - stand for themselves, as in `host`.
- owner: the host; on servers that host many projects, with the owner of this
  one: `github.com/owner` (code_hosts.py).
- author: the record's `author`, as it is written.

| what stands in the URL      | the host                                       |
|-----------------------------|------------------------------------------------|
| upper case                  | becomes lower case                             |
| `www.`                      | stays                                          |
| user and password           | are left out                                   |
| final dot                   | is left out                                    |
| port                        | left out if the scheme's own, else kept: it is |
|                             | another server                                 |
| letters that are not ASCII  | Punycode, after UTS #46's mapping: `bücher.de` |
|                             | becomes `xn--bcher-kva.de`                     |
| a label that UTS #46 forbids| stays, in lower case; so does one that is      |
|                             | longer than DNS allows                         |
| `a_b`, `-a`, `xn--?`        | stay: they occur                               |
| `%65xample.com`             | is decoded, once, as UTF-8                     |
| IPv4 address                | stays                                          |
| `[2001:DB8:0::1]`           | the short form: `[2001:db8::1]`                |
| any scheme before `//`      | is left out: `ftp://example.com`               |
| `//example.com`             | as after `http:`                               |
| `example.com:80/a`          | as after `http://`, if the host has a          |
|                             | registrable domain or is an IP address         |
| white space and control     | left out around the URL; in the host: no host  |
| characters                  |                                                |
| `mailto:a@b.c`, `data:,a`   | no host                                        |
| empty label, bad port       | no host                                        |
| IPv6 address with a zone    | no host                                        |
| one of `<>@[\]^|%` in a name| no host                                        |

A record without a URL may have a `domain` instead, as in CC-News. That is taken
as a URL without a scheme, of any host.
"""

import re
from collections.abc import Callable

from pipelines import code_hosts, url_location
from pipelines.source import Drop, RawRecord

# What most URLs look like, and needs nothing but to be cut out.
_PLAIN_URL = re.compile(
  r'https?://([a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?=[/?#]|\Z)', re.A
)
_MAX_EXCERPT_CHARACTERS = 200


def host_key(record: RawRecord) -> bytes:
  """Returns the record's host.

  Raises:
    Drop: missing_url if it has neither URL nor domain, no_host if the URL names
      no host.
  """
  if match := _PLAIN_URL.match(record.get('url', '')):
    return match[1].encode()
  host, port = _location(record)
  return f'{host}{port}'.encode()


def domain_key(record: RawRecord) -> bytes:
  """Returns the record's registrable domain, else its host.

  Raises:
    Drop: As `host_key`.
  """
  if match := _PLAIN_URL.match(record.get('url', '')):
    host, port = match[1], ''
  else:
    host, port = _location(record)
  domain = url_location.registrable_domain(host)
  return (domain or f'{host}{port}').encode()


def owner_key(record: RawRecord) -> bytes:
  """Returns the record's host, on shared servers with the owner.

  Raises:
    Drop: As `host_key`.
  """
  host = host_key(record).decode()
  url = record.get('url', '')
  if not url.strip():
    url = record.get('domain', '')
  return code_hosts.with_owner(host, url).encode()


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


def _location(record: RawRecord) -> url_location.Location:
  url, is_web = record.get('url', ''), False
  if not url.strip():
    url, is_web = record.get('domain', ''), True
  if not url.strip():
    raise Drop('missing_url')
  location = url_location.find_location(url, is_web=is_web)
  if location is None:
    excerpt = url[:_MAX_EXCERPT_CHARACTERS].encode('utf-8', 'replace')
    raise Drop('no_host', excerpt=excerpt)
  return location
