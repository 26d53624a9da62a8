"""Finds dead links in a built site, and what it would load from elsewhere."""

import html.parser
import pathlib
import re
import urllib.parse

# Elements that load what they name, and the attributes that name it.
_LOADED = {
  'script': ('src',),
  'link': ('href',),
  'img': ('src', 'srcset'),
  'source': ('src', 'srcset'),
  'iframe': ('src',),
  'object': ('data',),
  'embed': ('src',),
  'video': ('src', 'poster'),
  'audio': ('src',),
  'use': ('href', 'xlink:href'),
  'image': ('href', 'xlink:href'),
}
_REMOTE = re.compile(r'\s*(https?:)?//', re.IGNORECASE)
_STYLE_URL = re.compile(
  r'(?:@import\s*|url\(\s*)["\']?\s*((?:https?:)?//[^"\')\s]*)', re.IGNORECASE
)


class _Page(html.parser.HTMLParser):
  """Anchors, links and loaded addresses of a page."""

  def __init__(self, text: str):
    super().__init__()
    self.anchors, self.links, self.loaded = set(), [], []
    self._in_style, self.styles = False, []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    values = {name: value or '' for name, value in attrs}
    self.anchors |= {values[name] for name in ('id', 'name') if name in values}
    if tag == 'a' and 'href' in values:
      self.links.append(values['href'])
    for name in _LOADED.get(tag, ()):
      if name in values:
        self.loaded.append(values[name])
    self.styles.append(values.get('style', ''))
    self._in_style = tag == 'style'

  def handle_data(self, data):
    if self._in_style:
      self.styles.append(data)

  def handle_endtag(self, tag):
    self._in_style = False


def problems(site: pathlib.Path) -> list[str]:
  """Returns what is wrong with a site, a line for each link, sorted.

  Args:
    site: Directory of the built site.
  """
  pages = {
    path: _Page(path.read_text('utf-8'))
    for path in sorted(site.rglob('*.html'))
  }
  found = set()
  for path, page in pages.items():
    name = path.relative_to(site)
    for address in page.loaded:
      if _REMOTE.match(address):
        found.add(f'{name} loads {address}')
      else:
        found |= _dead(site, pages, path, address)
    for address in page.links:
      found |= _dead(site, pages, path, address)
    for style in page.styles:
      found |= {f'{name} loads {url}' for url in _STYLE_URL.findall(style)}
  for path in site.rglob('*.css'):
    for url in _STYLE_URL.findall(path.read_text('utf-8')):
      found.add(f'{path.relative_to(site)} loads {url}')
  return sorted(found)


def _dead(site, pages, path, address) -> set[str]:
  """Returns a line if an address within the site leads nowhere."""
  parts = urllib.parse.urlsplit(address)
  if parts.scheme or parts.netloc:
    return set()
  target = path
  if parts.path:
    target = path.parent / urllib.parse.unquote(parts.path)
    if parts.path.startswith('/'):
      # The page of errors, which a server shows anywhere.
      target = site / urllib.parse.unquote(parts.path[1:])
  target = pathlib.Path(target).resolve()
  if target.is_dir():
    target /= 'index.html'
  anchor = urllib.parse.unquote(parts.fragment)
  exists = target.is_file() and (
    not anchor or target not in pages or anchor in pages[target].anchors
  )
  line = f'{path.relative_to(site)} leads to {address}, which is not there'
  return set() if exists else {line}
