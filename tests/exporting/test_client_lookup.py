"""Names of clients that are typed right, and wrong."""

import types

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.exporting import generate


def _corpus(client_ids):
  return types.SimpleNamespace(
    client_ids=sorted(client_ids), directory='corpora/x'
  )


_HOSTS = _corpus(b'host%d.org' % i for i in range(12))


def _refusal(corpus, text):
  with pytest.raises(UserError) as error:
    generate.find_client(corpus, text)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_a_client():
  assert generate.find_client(_HOSTS, 'host3.org') == b'host3.org'


def test_bytes_that_are_no_text():
  corpus = _corpus([b'a%b\xff\n'])
  assert generate.find_client(corpus, 'a%25b%FF%0A') == b'a%b\xff\n'


def test_a_percent_sign_as_it_is():
  message = _refusal(_HOSTS, '100%')
  assert '`--client` must be a client id, in which a percent sign is' in message
  assert "found '100%'" in message


def test_a_client_that_is_not_there():
  message = _refusal(_HOSTS, 'hosts3.org')
  assert message == (
    "`--client` must be one of the 12 clients of 'corpora/x', but "
    "'hosts3.org' is none of them. Copy one from `fedfish inspect`."
  )
