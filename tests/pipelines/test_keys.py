"""Tables of URLs and authors with the group they belong to."""

import hypothesis
import hypothesis.strategies as st
import pytest

from pipelines import keys
from pipelines.source import Drop

_HOSTS = [
  ('http://Example.COM/a', 'example.com'),
  ('https://www.example.com', 'www.example.com'),
  ('http://a_b.-c.xn--zzzz.example/', 'a_b.-c.xn--zzzz.example'),
  # User, final dot, and what stands around the URL.
  ('http://user:pass@example.com/', 'example.com'),
  ('http://example.com.:8080/', 'example.com:8080'),
  ('  http://example.com\n', 'example.com'),
  ('\ufeffhttp://example.com/', 'example.com'),
  ('\0http://example.com\x7f', 'example.com'),
  # Ports.
  ('http://example.com:80/', 'example.com'),
  ('https://example.com:443/', 'example.com'),
  ('https://example.com:80/', 'example.com:80'),
  ('http://example.com:65535/', 'example.com:65535'),
  ('http://example.com:00000008080/', 'example.com:8080'),
  ('http://example.com:/', 'example.com'),
  # Addresses.
  ('http://[2001:DB8::1]:8080/', '[2001:db8::1]:8080'),
  ('http://u@[::ffff:1.2.3.4]/', '[::ffff:102:304]'),
  ('http://127.1/', '127.0.0.1'),
  ('http://0x7f.1:80/', '127.0.0.1'),
  # No addresses for all their digits.
  ('http://1.2.3.4.5/', '1.2.3.4.5'),
  ('http://www.3com/', 'www.3com'),
  # Names that are not ASCII.
  ('http://bücher.example/', 'xn--bcher-kva.example'),
  ('http://BU\u0308CHER.example/', 'xn--bcher-kva.example'),
  ('http://XN--Bcher-KVA.example/', 'xn--bcher-kva.example'),
  ('http://b%C3%BCcher.example/', 'xn--bcher-kva.example'),
  ('http://faß.de/', 'xn--fa-hia.de'),
  ('http://例え。テスト/', 'xn--r8jz45g.xn--zckzah'),
  ('http://１.２.３.４/', '1.2.3.4'),
  ('http://exa\u00admple.com/', 'example.com'),
  # As browsers do.
  ('http://exam\tple.com/', 'example.com'),
  ('http://example.com\\path', 'example.com'),
  # No scheme.
  ('//example.com/no/scheme', 'example.com'),
  ('example.com/no/scheme', 'example.com'),
  ('www.example.com:8080/x', 'www.example.com:8080'),
  ('1.2.3.4:8080/a', '1.2.3.4:8080'),
  ('[::1]/a', '[::1]'),
  # Other schemes, and escapes.
  ('ftp://example.com/', 'example.com'),
  ('http://%65xample%2Ecom/', 'example.com'),
]

_DOMAINS = [
  ('http://www.example.com/', 'example.com'),
  ('http://www.example.com:8080/', 'example.com'),
  ('http://a.b.example.co.uk/', 'example.co.uk'),
  ('http://One.github.io/', 'one.github.io'),
  ('http://www.食狮.公司.cn/', 'xn--85x722f.xn--55qx5d.cn'),
  ('http://www.xn--85x722f.xn--55qx5d.cn/', 'xn--85x722f.xn--55qx5d.cn'),
  ('www.example.com:8080/x', 'example.com'),
  # No registrable domain: the host stands for itself.
  ('http://github.io/', 'github.io'),
  ('http://co.uk/', 'co.uk'),
  ('http://1.2.3.4/', '1.2.3.4'),
  ('http://[::1]:8000/', '[::1]:8000'),
  ('http://server.unknownsuffix/', 'server.unknownsuffix'),
  # 127 x 2 + 3 = 257 characters are more than a name may have.
  (f'http://{"a." * 127}com/', f'{"a." * 127}com'),
]

_BAD_URLS = [
  ('', 'missing_url'),
  # No host where one has to be.
  ('http:///path', 'no_host'),
  ('file:///etc/hosts', 'no_host'),
  ('http://./', 'no_host'),
  ('http://\u200b/', 'no_host'),
  # No scheme, and no sign that this is a host.
  ('mailto:a@example.com', 'no_host'),
  ('user:pass@example.com/', 'no_host'),
  ('javascript:void(0)', 'no_host'),
  ('http:example.com', 'no_host'),
  ('localhost:8000/a', 'no_host'),
  ('about.html', 'no_host'),
  ('12345', 'no_host'),
  ('127.1', 'no_host'),
  # What no host can hold.
  ('http://exam ple.com/', 'no_host'),
  ('http://exam\x80ple.com/', 'no_host'),
  ('http://\ud800.com/', 'no_host'),
  # U+2488 is a digit with a full stop.
  ('http://x\u2488.bücher.example/', 'no_host'),
  ('http://a%40b.com/', 'no_host'),
  ('http://100%.com/', 'no_host'),
  ('http://%FF.com/', 'no_host'),
  ('http://a..com/', 'no_host'),
  # Addresses and ports.
  ('http://[::1/', 'no_host'),
  ('http://[::1%25eth0]/', 'no_host'),
  ('http://::1/', 'no_host'),
  ('http://example.com:port/', 'no_host'),
  ('http://example.com:８０/', 'no_host'),
  ('http://example.com:65536/', 'no_host'),
  (f'http://example.com:{"9" * 5000}/', 'no_host'),
]


@pytest.mark.parametrize(('url', 'host'), _HOSTS)
def test_host(url, host):
  assert keys.host_key({'url': url}) == host.encode()


@pytest.mark.parametrize(('url', 'domain'), _DOMAINS)
def test_domain(url, domain):
  assert keys.domain_key({'url': url}) == domain.encode()


@pytest.mark.parametrize(
  ('url', 'owner'),
  [
    ('https://github.com/Owner/Project', 'github.com/owner'),
    (' https://GitHub.com/owner?tab=a/b ', 'github.com/owner'),
    ('https://gitlab.com/a-b.c_d/team/project', 'gitlab.com/a-b.c_d'),
    ('https://git.sr.ht/~owner/project', 'git.sr.ht/~owner'),
    ('http://sourceforge.net/projects/Name/files', 'sourceforge.net/name'),
    ('https://code.google.com/archive/p/name', 'code.google.com/name'),
    # No name, or none that such a server allows.
    ('https://github.com', 'github.com'),
    ('https://github.com/%6fwner/x', 'github.com'),
    ('http://sourceforge.net/projects/', 'sourceforge.net'),
    ('http://sourceforge.net/name', 'sourceforge.net'),
    # Another server.
    ('https://github.com:8080/owner', 'github.com:8080'),
    ('https://owner.github.io/project', 'owner.github.io'),
  ],
)
def test_owner(url, owner):
  assert keys.owner_key({'url': url}) == owner.encode()


def test_owner_of_a_domain():
  record = {'domain': 'github.com/owner'}
  assert keys.owner_key(record) == b'github.com/owner'


@pytest.mark.parametrize(('url', 'reason'), _BAD_URLS)
def test_url_without_host(url, reason):
  for key in (keys.host_key, keys.domain_key, keys.owner_key):
    with pytest.raises(Drop, match=f'^{reason}$'):
      key({'url': url})


def test_url_without_host_is_shown():
  with pytest.raises(Drop) as dropped:
    keys.host_key({'url': 'http://a b\ud800/' + 'x' * 1000})
  assert dropped.value.excerpt == b'http://a b?/' + b'x' * 188


@pytest.mark.parametrize('url', [{}, {'url': ''}, {'url': ' '}])
@pytest.mark.parametrize(
  ('value', 'host', 'domain'),
  [
    ('www.Example.com', b'www.example.com', b'example.com'),
    ('https://www.example.com/a', b'www.example.com', b'example.com'),
    # A host of any kind, unlike in `url`.
    ('localhost', b'localhost', b'localhost'),
    (' \ufeffexample.com\0', b'example.com', b'example.com'),
    ('', 'missing_url', None),
    ('a b', 'no_host', None),
  ],
)
def test_domain_instead_of_a_url(url, value, host, domain):
  record = {**url, 'domain': value}
  if domain is None:
    with pytest.raises(Drop, match=f'^{host}$'):
      keys.host_key(record)
    return
  assert keys.host_key(record) == host
  assert keys.domain_key(record) == domain
  # A URL comes first.
  assert keys.host_key({**record, 'url': 'http://a.com/'}) == b'a.com'


_LABELS = st.text(max_size=4) | st.sampled_from(
  ['example', 'www', 'com', 'co', 'uk', 'github', 'io', 'a_b', 'Bücher', '1']
  + ['xn--bcher-kva', 'xn--', 'ＡＢ', 'Ⅎ', 'ς', 'Σ', 'İ', '⒈', '٣', 'א', '❤']
  + ['', '[::1]', '%41', '%C3%BC', '%zz', ' ', '@', ':', '\\', '\u200d']
)
_AUTHORITIES = st.builds(
  '{}{}{}'.format,
  st.sampled_from(['', '', 'user@', 'u:p@']),
  st.lists(_LABELS, min_size=1, max_size=5).map('.'.join),
  st.sampled_from(['', '', ':80', ':443', ':8080', ':', ':x', '.']),
)
_URLS = st.text() | st.builds(
  '{}{}{}'.format,
  st.sampled_from(['http://', 'https://', 'HTTP://', 'ftp://', '//', '', ' ']),
  _AUTHORITIES,
  st.sampled_from(['/', '', '/a/b', '?q=/', '#f', '/ ', '\\x', ' /a', '\n']),
)


def _host(url):
  """Returns the host, None if there is none; fails on any other exception."""
  try:
    return keys.host_key({'url': url})
  except Drop as drop:
    assert drop.reason == ('no_host' if url.strip() else 'missing_url')
    return None


@hypothesis.settings(max_examples=60)
@hypothesis.given(_URLS)
def test_host_stands_for_itself(url):
  host = _host(url)
  if host is None:
    return
  for scheme in ('gopher://', 'gopher://user@'):
    assert _host(f'{scheme}{host.decode()}') == host
    assert _host(f'{scheme}{host.decode()}/a?b') == host


def test_hostile_urls_take_no_time():
  # Quadratic in their length, each of these would take minutes.
  for url in ('ü' * 200_000, '%41' * 200_000, 'ü.' * 100_000, '[' * 200_000):
    _host(f'http://{url}/')
    _host(url)


def test_author_is_kept_as_written():
  assert keys.author_key({'author': ' Zoë O. '}) == ' Zoë O. '.encode()


@pytest.mark.parametrize('record', [{}, {'author': ' \t'}])
def test_no_author(record):
  with pytest.raises(Drop, match='^missing_author$'):
    keys.author_key(record)
