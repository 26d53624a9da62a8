"""The store of what clients keep: versions, garbage, damage, full disks."""

import errno
import json
import os
import re
import subprocess

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_fedfish.errors import UserError
from tff_fedfish.run import client_state_files, kept_tensors
from tff_fedfish.run.client_states import ClientStates

_SLOTS = (('model', (((3,), 'float32'),)), ('count', (((), 'int32'),)))


def _tensors(value):
  return {
    'model/0': np.full(3, value, np.float32),
    'count/0': np.int32(value),
  }


def _write(states, round_num, clients):
  """Commits a round whose clients keep the number of the round."""
  writer = states.begin(round_num)
  for index, client in enumerate(clients):
    writer.add(index, client, _tensors(round_num))
  writer.commit()


def _round_of(states, client, before_round):
  """Returns the round of the state that a client starts with, None: none."""
  path = states.path_for(client, before_round)
  return path and int(client_state_files.read(path)['count/0'])


def test_a_client_starts_with_its_newest_earlier_version(tmp_path):
  states = ClientStates(tmp_path)
  assert states.path_for(b'a', 1) is None
  _write(states, 1, [b'a', b'b'])
  _write(states, 3, [b'b', b'c'])
  for opened in (states, ClientStates(tmp_path)):
    rounds = [_round_of(opened, b'b', r) for r in range(1, 6)]
    assert rounds == [None, 1, 1, 3, 3]
    assert _round_of(opened, b'a', 9) == 1
    assert _round_of(opened, b'd', 9) is None


def test_files(tmp_path):
  states = ClientStates(tmp_path)
  _write(states, 12, [b'b', b'\xffa'])
  directory = tmp_path / 'client_states' / 'round_00000012'
  assert sorted(os.listdir(directory)) == [
    '0000.safetensors',
    '0001.safetensors',
    'manifest.json',
  ]
  manifest = json.loads((directory / 'manifest.json').read_text())
  assert list(manifest['clients']) == ['62', 'ff61']
  assert manifest['clients']['ff61']['file'] == '0001.safetensors'
  assert states.num_bytes == sum(
    path.stat().st_size for path in directory.glob('*.safetensors')
  )


def test_what_is_not_committed_does_not_count(tmp_path):
  states = ClientStates(tmp_path)
  _write(states, 1, [b'a'])
  writer = states.begin(2)
  writer.add(0, b'a', _tensors(2))
  # As after kill -9.
  opened = ClientStates(tmp_path)
  assert _round_of(opened, b'a', 3) == 1
  opened.discard_after(1)
  assert os.listdir(tmp_path / 'client_states') == ['round_00000001']
  writer = opened.begin(2)
  writer.add(0, b'a', _tensors(2))
  writer.abandon()
  assert os.listdir(tmp_path / 'client_states') == ['round_00000001']


def test_a_client_that_comes_twice_counts_once(tmp_path):
  states = ClientStates(tmp_path)
  writer = states.begin(1)
  for value in (5, 6):
    writer.add(3, b'a', _tensors(value))
  writer.commit()
  assert _round_of(states, b'a', 2) == 6


def test_a_client_that_is_taken_back(tmp_path):
  states = ClientStates(tmp_path)
  writer = states.begin(1)
  writer.add(0, b'a', _tensors(1))
  writer.add(1, b'b', _tensors(1))
  writer.take_back(b'a')
  writer.take_back(b'c')
  writer.commit()
  assert states.path_for(b'a', 2) is None
  assert _round_of(states, b'b', 2) == 1
  directory = tmp_path / 'client_states' / 'round_00000001'
  assert sorted(os.listdir(directory)) == ['0001.safetensors', 'manifest.json']


def test_later_rounds_need_not_be_whole(tmp_path):
  states = ClientStates(tmp_path)
  for round_num in (1, 2):
    _write(states, round_num, [b'a'])
  directory = tmp_path / 'client_states'
  (directory / 'round_00000002' / 'manifest.json').write_text('{')
  opened = ClientStates(tmp_path, 1)
  assert _round_of(opened, b'a', 2) == 1
  opened.discard_after(1)
  assert os.listdir(directory) == ['round_00000001']
  # A file that is missing at the checkpoint is named, though there was a newer
  # version.
  _write(opened, 2, [b'a'])
  (directory / 'round_00000001' / '0000.safetensors').unlink()
  summary = ClientStates(tmp_path, 1).summary(1)
  with pytest.raises(UserError, match="client 'a' after round 1, "):
    ClientStates(tmp_path, 1).require_as_after(1, summary)


def test_a_round_in_which_nobody_keeps_anything(tmp_path):
  states = ClientStates(tmp_path)
  states.begin(1).commit()
  assert os.listdir(tmp_path / 'client_states') == []


def test_discarded_rounds(tmp_path):
  states = ClientStates(tmp_path)
  for round_num in (1, 2, 3):
    _write(states, round_num, [b'a', b'b'])
  size = states.num_bytes
  states.discard_after(1)
  assert _round_of(states, b'a', 9) == 1
  assert states.num_bytes == size / 3
  states.discard_after(-1)
  assert states.path_for(b'a', 9) is None
  assert states.num_bytes == 0


def test_superseded_versions_go(tmp_path):
  states = ClientStates(tmp_path)
  for round_num, clients in enumerate([b'ab', b'a', b'a', b'ac', b'a'], 1):
    _write(states, round_num, [bytes([c]) for c in clients])
  # Of a 1 to 5, 5 is the newest and 3 was so after round 3; b and c are live.
  states.collect({3})
  assert sorted(os.listdir(tmp_path / 'client_states')) == [
    'round_00000001',  # b
    'round_00000003',
    'round_00000004',  # c
    'round_00000005',
  ]
  for opened in (states, ClientStates(tmp_path)):
    assert _round_of(opened, b'a', 4) == 3
    assert _round_of(opened, b'a', 9) == 5
    assert _round_of(opened, b'b', 4) == 1
  assert ClientStates(tmp_path).num_bytes == states.num_bytes
  # A run that goes on after round 3 finds what it had then.
  summary = states.summary(3)
  states.discard_after(3)
  states.require_as_after(3, summary)
  assert summary['num_clients'] == 2


_EVENTS = st.lists(
  st.one_of(
    st.frozensets(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from(['checkpoint', 'resume']),
  ),
  max_size=25,
)


@hypothesis.given(_EVENTS)
@hypothesis.settings(max_examples=60)
def test_any_order_of_rounds_checkpoints_and_resumes(tmp_path_factory, events):
  directory = tmp_path_factory.mktemp('states')
  states, round_num = ClientStates(directory), 0
  live, checkpoints = {}, {0: ({}, None)}
  for event in events:
    if event == 'checkpoint':
      checkpoints[round_num] = (dict(live), states.summary(round_num))
    elif event == 'resume':
      # From the newest checkpoint, or, as if that were damaged, the one before.
      round_num = sorted(checkpoints)[-2:][0]
      # States of earlier ones may have been collected.
      checkpoints = {round_num: checkpoints[round_num]}
      states = ClientStates(directory)
      states.discard_after(round_num)
      live, summary = checkpoints[round_num]
      live = dict(live)
      if summary is not None:
        states.require_as_after(round_num, summary)
    else:
      round_num += 1
      _write(states, round_num, [bytes([97 + c]) for c in sorted(event)])
      live |= dict.fromkeys(event, round_num)
      states.collect(sorted(checkpoints)[-2:])
    for client in range(5):
      found = _round_of(states, bytes([97 + client]), round_num + 1)
      assert found == live.get(client)
  num_files = len(list(directory.glob('client_states/*/*.safetensors')))
  assert num_files <= 3 * max(len(live), 5)


class TestDamage:
  """One line each, which names client, round and file."""

  @pytest.fixture
  def states(self, tmp_path):
    states = ClientStates(tmp_path)
    _write(states, 1, [b'www.a.org', b'b'])
    _write(states, 2, [b'b'])
    # Another process, which has not written them.
    return ClientStates(tmp_path)

  @pytest.fixture
  def path(self, tmp_path):
    return tmp_path / 'client_states' / 'round_00000001' / '0000.safetensors'

  def _message(self, states, *, find=True):
    with pytest.raises(UserError) as caught:
      if find:
        kept_tensors.find(states, _SLOTS, b'www.a.org', 3)
      else:
        states.require_as_after(2, states.summary(2))
    assert '\n' not in str(caught.value)
    assert str(caught.value).endswith(client_state_files.ADVICE)
    return str(caught.value)

  def test_a_flipped_bit(self, states, path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    assert re.match(
      "The state of client 'www.a.org' after round 1, "
      f"'{path}', must have SHA-256 [0-9a-f]{{64}}, but has [0-9a-f]{{64}}. ",
      self._message(states),
    )
    # Others are as they were.
    assert _round_of(states, b'b', 3) == 2
    with pytest.raises(UserError, match='www.a.org'):
      list(states.verify(2))

  def test_a_file_that_is_cut_off(self, states, path):
    size = path.stat().st_size
    os.truncate(path, 9)
    for find in (True, False):
      message = self._message(states, find=find)
      assert f'must have {size} bytes, but has 9' in message

  def test_a_file_that_is_gone(self, states, path):
    path.unlink()
    for find in (True, False):
      message = self._message(states, find=find)
      assert 'cannot be read (No such file or directory)' in message

  def test_a_state_of_another_model(self, states, tmp_path):
    writer = states.begin(3)
    writer.add(0, b'www.a.org', {'model/0': np.zeros(4, np.float32)})
    writer.commit()
    with pytest.raises(UserError) as caught:
      kept_tensors.find(states, _SLOTS, b'www.a.org', 4)
    assert str(caught.value).startswith(
      "The state of client 'www.a.org' in "
      f"'{tmp_path}/client_states/round_00000003/0000.safetensors' is of "
      "another model or method: tensor 'count/0' must have shape [], but has "
      'none.'
    )

  def test_states_that_are_gone(self, states, tmp_path):
    summary = states.summary(2)
    assert summary['num_clients'] == 2
    subprocess.run(['rm', '-r', tmp_path / 'client_states'], check=True)
    with pytest.raises(UserError) as caught:
      ClientStates(tmp_path).require_as_after(2, summary)
    assert str(caught.value) == (
      f"'{tmp_path}/client_states' must hold what 2 clients kept after round "
      '2, from which the run continues, but holds that of 0. '
      f'{client_state_files.ADVICE}'
    )

  def test_states_of_another_run(self, states, tmp_path):
    other = ClientStates(tmp_path / 'other')
    (tmp_path / 'other').mkdir()
    _write(other, 2, [b'www.a.org', b'b'])
    with pytest.raises(UserError, match='but holds something else. Restore'):
      other.require_as_after(2, states.summary(2))

  @pytest.mark.parametrize(
    'content', ['', '{}', '{"schema_version": 1, "clients": {"xx": {}}}']
  )
  def test_a_manifest_that_cannot_be_read(self, states, path, content):
    del states
    manifest = path.parent / 'manifest.json'
    manifest.write_text(content)
    with pytest.raises(UserError, match=f"'{manifest}' must name the states"):
      ClientStates(path.parents[2])


@pytest.mark.parametrize(
  'next_call',
  [
    lambda writer: writer.add(2, b'c', _tensors(2)),
    lambda writer: writer.take_back(b'b'),
    lambda writer: writer.commit(),
  ],
  ids=['add', 'take_back', 'commit'],
)
def test_full_disk(small_disk, next_call):
  states = ClientStates(small_disk)
  _write(states, 1, [b'a'])
  writer = states.begin(2)
  writer.add(0, b'b', _tensors(2))
  large = {'model/0': np.zeros(1_000_000, np.float32)}
  # Written in a thread: the next call raises.
  writer.add(1, b'a', large)
  with pytest.raises(OSError) as caught:
    next_call(writer)
  assert caught.value.errno == errno.ENOSPC
  assert caught.value.filename.endswith('/0001.safetensors')
  writer.abandon()
  # There is room again, and the last round is whole.
  assert os.listdir(small_disk / 'client_states') == ['round_00000001']
  assert _round_of(states, b'a', 9) == 1
  _write(states, 2, [b'a'])
  assert _round_of(ClientStates(small_disk), b'a', 9) == 2


def test_read_only_disk(small_disk):
  states = ClientStates(small_disk)
  _write(states, 1, [b'a'])
  remount = ['mount', '-o', 'remount,ro', str(small_disk)]
  if subprocess.run(remount, capture_output=True).returncode:
    pytest.skip('needs the right to mount a file system')
  assert _round_of(ClientStates(small_disk), b'a', 9) == 1
  with pytest.raises(OSError) as caught:
    states.begin(2)
  assert caught.value.errno == errno.EROFS
  assert str(small_disk / 'client_states') in caught.value.filename


def test_tensors_of_an_output(tmp_path):
  model = np.float32([1 / 3, 1e-30, -2])
  output = {'is_valid': 1, 'model': (model,), 'count': (np.int64(7),)}
  kept = kept_tensors.tensors_of(output)
  states = ClientStates(tmp_path)
  writer = states.begin(1)
  writer.add(0, b'a', kept)
  writer.commit()
  found = client_state_files.read(states.path_for(b'a', 2))
  assert found['model/0'].dtype == np.float32
  np.testing.assert_array_equal(found['model/0'], model)
  assert found['count/0'] == 7 and found['count/0'].dtype == np.int64
  assert kept_tensors.tensors_of({**output, 'is_valid': 0}) is None
  # 3 float32 and an int32.
  assert kept_tensors.num_bytes(_SLOTS) == 16


def test_datasets(tmp_path):
  states = ClientStates(tmp_path)
  first = kept_tensors.find(states, _SLOTS, b'a', 1)
  _write(states, 1, [b'a'])
  later = kept_tensors.find(states, _SLOTS, b'a', 2)
  for kept, elements in ((first, []), (later, [[1, 1, 1], 1])):
    datasets = kept.datasets()
    assert list(datasets) == ['model', 'count']
    found = [
      np.asarray(tensor).tolist()
      for dataset in datasets.values()
      for element in dataset
      for tensor in element
    ]
    assert found == elements
    (model,) = datasets['model'].element_spec
    assert (model.shape, model.dtype.name) == ([3], 'float32')
