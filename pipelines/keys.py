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
"""

import re
from collections.abc import Callable

from pipelines import url_location
from pipelines.source import Drop, RawRecord

# What most URLs look like, and needs nothing but to be cut out.
_PLAIN_URL = re.compile(
  r'https?://([a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?=[/?#]|\Z)', re.A
)
_MAX_EXCERPT_CHARACTERS = 200

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
  domain = url_location.registrable_domain(host)
  return (domain or f'{host}{port}').encode()


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
  """Returns host and port."""
  if match := _PLAIN_URL.match(record.get('url', '')):
    return match[1], ''
  url = _url(record)
  if not url.strip():
    raise Drop('missing_url')
  is_web = not record.get('url', '').strip()
  location = url_location.find_location(url, is_web=is_web)
  if location is None:
    excerpt = url[:_MAX_EXCERPT_CHARACTERS].encode('utf-8', 'replace')
    raise Drop('no_host', excerpt=excerpt)
  return location


def _url(record: RawRecord) -> str:
  url = record.get('url', '')
  return url if url.strip() else record.get('domain', '')
