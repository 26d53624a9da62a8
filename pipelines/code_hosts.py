"""Owners on the servers where the sites of many projects lie side by side.

Without them one such server can be the largest client of all by far. A path
there starts with the owner's name, or with the project's after a fixed word:

| URL                                       | key                        |
|-------------------------------------------|----------------------------|
| `https://github.com/Owner/project`        | `github.com/owner`         |
| `https://gitlab.com/group/team/project`   | `gitlab.com/group`         |
| `https://git.sr.ht/~owner/project`        | `git.sr.ht/~owner`         |
| `http://sourceforge.net/projects/name/`   | `sourceforge.net/name`     |
| `https://github.com/`                     | `github.com`               |

Names are taken in lower case, as these servers do. Subdomains of an owner, such
as `owner.github.io`, are hosts of their own already.
"""

import re

# (host, words before the name); '' for no word.
_NAME_AFTER = {
  **{
    host: ('',)
    for host in (
      'bitbucket.org',
      'codeberg.org',
      'framagit.org',
      'git.sr.ht',
      'gitee.com',
      'github.com',
      'gitlab.com',
      'gitlab.freedesktop.org',
      'gitlab.gnome.org',
      'gitlab.inria.fr',
      'invent.kde.org',
      'launchpad.net',
      'notabug.org',
      'opendev.org',
      'salsa.debian.org',
    )
  },
  'code.google.com': ('p', 'archive/p'),
  'savannah.gnu.org': ('projects', 'p'),
  'savannah.nongnu.org': ('projects', 'p'),
  'sourceforge.net': ('projects', 'p', 'apps'),
}
_PATH = re.compile(r'(?:[^/?#]*//)?[^/?#]*([^?#]*)')
# What all of these servers allow in names.
_NAME = re.compile(r'[~.\w-]+', re.A)


def with_owner(host: str, url: str) -> str:
  """Returns `host/owner` where the URL names an owner on a shared server.

  Args:
    host: The URL's host, as `keys.host_key` spells it.
    url: The URL.

  Returns:
    The key; for any other host, or a path without a name, the host itself.
  """
  server = host.removeprefix('www.')
  if server not in _NAME_AFTER:
    return host
  segments = _PATH.match(url.strip())[1].strip('/').split('/')
  for word in _NAME_AFTER[server]:
    before = word.split('/') if word else []
    if segments[: len(before)] != before:
      continue
    name = '/'.join(segments[len(before) : len(before) + 1])
    if _NAME.fullmatch(name):
      return f'{server}/{name.lower()}'
  return host
