"""Tables of URLs and authors with the group they belong to."""

import pytest

from pipelines import keys
from pipelines.source import Drop

_HOSTS = [
  ('http://Example.COM/a', b'example.com'),
  ('https://www.example.com', b'www.example.com'),
  ('http://user:pass@example.com/', b'example.com'),
  ('http://example.com:80/', b'example.com'),
  ('https://example.com:443/', b'example.com'),
  ('https://example.com:80/', b'example.com:80'),
  ('http://example.com:8080/', b'example.com:8080'),
  ('http://example.com:/', b'example.com'),
  ('http://example.com./', b'example.com'),
  ('  http://example.com\n', b'example.com'),
  ('//example.com/no/scheme', b'example.com'),
  ('http://1.2.3.4:5/', b'1.2.3.4:5'),
  ('http://[2001:DB8::1]:8080/', b'[2001:db8::1]:8080'),
  ('http://bücher.example/', 'bücher.example'.encode()),
  ('http://xn--bcher-kva.example/', b'xn--bcher-kva.example'),
]

_DOMAINS = [
  ('http://www.example.com/', b'example.com'),
  ('http://www.example.com:8080/', b'example.com'),
  ('http://a.b.example.co.uk/', b'example.co.uk'),
  ('http://One.github.io/', b'one.github.io'),
  ('http://two.github.io/', b'two.github.io'),
  ('http://x.blogspot.com/', b'x.blogspot.com'),
  # No registrable domain: the host stands for itself.
  ('http://github.io/', b'github.io'),
  ('http://co.uk/', b'co.uk'),
  ('http://localhost:8000/', b'localhost:8000'),
  ('http://1.2.3.4/', b'1.2.3.4'),
  ('http://[::1]/', b'[::1]'),
  ('http://server.unknownsuffix/', b'server.unknownsuffix'),
]

_BAD_URLS = [
  ('', 'missing_url'),
  (' ', 'missing_url'),
  ('example.com/no/scheme', 'no_host'),
  ('mailto:a@example.com', 'no_host'),
  ('http:///path', 'no_host'),
  ('http://:80/', 'no_host'),
  ('http://./', 'no_host'),
  ('http://[::1/', 'no_host'),
  ('http://example.com:port/', 'no_host'),
  ('http://example.com:99999/', 'no_host'),
]


@pytest.mark.parametrize(('url', 'host'), _HOSTS)
def test_host(url, host):
  assert keys.host_key({'url': url}) == host


@pytest.mark.parametrize(('url', 'domain'), _DOMAINS)
def test_domain(url, domain):
  assert keys.domain_key({'url': url}) == domain


@pytest.mark.parametrize(('url', 'reason'), _BAD_URLS)
@pytest.mark.parametrize('key', [keys.host_key, keys.domain_key])
def test_url_without_host(key, url, reason):
  with pytest.raises(Drop, match=f'^{reason}$'):
    key({'url': url})


def test_no_url():
  with pytest.raises(Drop, match='^missing_url$'):
    keys.host_key({})


def test_author_is_kept_as_written():
  assert keys.author_key({'author': ' Zoë O. '}) == ' Zoë O. '.encode()


@pytest.mark.parametrize('record', [{}, {'author': ''}, {'author': ' \t'}])
def test_no_author(record):
  with pytest.raises(Drop, match='^missing_author$'):
    keys.author_key(record)
