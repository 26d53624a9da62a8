"""events.csv tells whom a round dropped, and a resumed run drops them again."""

import types

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.run.client_events import ClientEvents, DroppedClient
from tff_fedfish.runtime.client_data import DroppedClientError


def _clients(*client_ids):
  return [types.SimpleNamespace(client_id=c) for c in client_ids]


def _dropped(events, round_num):
  clients = events.clients(round_num, _clients(b'a', b'=b', b'\xff'))
  return [c.client_id for c in clients if isinstance(c, DroppedClient)]


def test_rounds_drop_whom_they_dropped(tmp_path):
  events = ClientEvents(tmp_path, True)
  events.start(0)
  assert not events.is_done(1)
  events.record(1, [b'=b', b'\xff'])
  events.record(2, [])
  text = (tmp_path / 'events.csv').read_text('utf-8')
  assert text == (
    'round,client_id,event\n'
    '1,%3Db,client_timeout\n'
    '1,%FF,client_timeout\n'
    '1,,round_done\n'
    '2,,round_done\n'
  )
  # With a limit or without: what is done is done.
  for is_on in (True, False):
    events = ClientEvents(tmp_path, is_on)
    events.start(0)
    assert [events.is_done(n) for n in (1, 2, 3)] == [True, True, False]
    assert _dropped(events, 1) == [b'=b', b'\xff']
    assert _dropped(events, 2) == []
    events.record(1, [b'a'])
    assert (tmp_path / 'events.csv').read_text('utf-8') == text
  events.record(3, [b'a'])
  assert _dropped(ClientEvents(tmp_path, False), 3) == [b'a']


def test_dropped_client_fails():
  with pytest.raises(DroppedClientError, match='dropped before, as events.csv'):
    DroppedClient(b'a').load()


def test_without_a_limit_there_is_no_file(tmp_path):
  events = ClientEvents(tmp_path, False)
  events.start(0)
  events.record(1, [])
  assert not list(tmp_path.iterdir())
  assert not events.is_done(1)


def test_rounds_before_the_limit_dropped_nobody(tmp_path):
  ClientEvents(tmp_path, True).start(7)
  events = ClientEvents(tmp_path, True)
  assert events.is_done(7) and not events.is_done(8)


@pytest.mark.parametrize(
  'end',
  ['3,a,client_timeout\n', '3,a,client_timeout\n3,,round_do', '3,,round_done'],
)
def test_round_that_was_being_written_does_not_count(tmp_path, end):
  whole = 'round,client_id,event\n2,a,client_timeout\n2,,round_done\n'
  (tmp_path / 'events.csv').write_text(whole + end)
  events = ClientEvents(tmp_path, True)
  assert events.is_done(2) and not events.is_done(3)
  events.start(2)
  assert (tmp_path / 'events.csv').read_text() == whole
  events.record(3, [b'b'])
  assert _dropped(ClientEvents(tmp_path, True), 2) == [b'a']
  assert (tmp_path / 'events.csv').read_text() == (
    whole + '3,b,client_timeout\n3,,round_done\n'
  )


@pytest.mark.parametrize(
  ('text', 'line'),
  [
    ('round,client\n', 1),
    ('round,client_id,event\none,,round_done\n', 2),
    ('round,client_id,event\n1,,round_done\n2,a\n', 3),
    ('round,client_id,event\n1,a,round_done\n', 2),
    ('round,client_id,event\n1,,client_timeout\n', 2),
    ('round,client_id,event\n1,a,fell asleep\n', 2),
    ('round,client_id,event\n\n', 2),
  ],
)
def test_damaged_file(tmp_path, text, line):
  (tmp_path / 'events.csv').write_text(text)
  with pytest.raises(
    UserError,
    match=r'events.csv. must hold round, client_id and event in every line, '
    f'but line {line} does not. Restore the file',
  ):
    ClientEvents(tmp_path, True)
