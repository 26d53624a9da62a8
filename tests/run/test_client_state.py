"""The states of clients: versions, garbage, damage, the inputs of a round."""

import errno
import os
import shutil
import subprocess

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_fedfish.errors import UserError
from tff_fedfish.run import (
  checkpoint_writer,
  checkpoints,
  client_inputs,
  tensor_files,
)
from tff_fedfish.run.client_inputs import KeptTensors
from tff_fedfish.run.client_state import ClientStates, states_of_checkpoint

_SLOTS = (('model', (((3,), 'float32'),)), ('count', (((), 'int32'),)))


def _tensors(value):
  return {
    'model/0': np.full(3, value, np.float32),
    'count/0': np.int32(value),
  }


def _write(states, round_num, clients):
  """Commits a round whose clients keep the number of the round."""
  with states.begin(round_num) as writer:
    for index, client in enumerate(clients):
      writer.add_client(index, client, _tensors(round_num))
    states.commit()


def _round_of(states, client, before_round):
  """Returns the round of the state that a client starts with, None: none."""
  path = states.path_for(client, before_round)
  return path and int(tensor_files.read(path)['count/0'])


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
    assert opened.clients_of(3) == [b'b', b'c']
    assert opened.clients_of(2) == []
  files = list((tmp_path / 'client_states').glob('*/*.safetensors'))
  assert states.num_bytes == sum(path.stat().st_size for path in files)


def test_what_is_not_committed_does_not_count(tmp_path):
  states = ClientStates(tmp_path)
  _write(states, 1, [b'a'])
  writer = states.begin(2)
  writer.add_client(0, b'a', _tensors(2))
  # The process that writes it scores its clients with it before.
  assert _round_of(states, b'a', 3) == 2
  assert states.clients_of(2) == [b'a']
  # As after kill -9.
  opened = ClientStates(tmp_path)
  assert _round_of(opened, b'a', 3) == 1
  opened.discard_after(1)
  assert os.listdir(tmp_path / 'client_states') == ['round_00000001']
  with opened.begin(2) as writer:
    writer.add_client(0, b'a', _tensors(2))
  assert os.listdir(tmp_path / 'client_states') == ['round_00000001']
  assert _round_of(opened, b'a', 3) == 1
  # A round in which nobody keeps anything leaves nothing.
  with opened.begin(2):
    opened.commit()
  assert os.listdir(tmp_path / 'client_states') == ['round_00000001']


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
  assert opened.num_bytes == states.num_bytes / 2
  opened.discard_after(-1)
  assert opened.path_for(b'a', 9) is None
  assert opened.num_bytes == 0


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
  states.sync()
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
  live, saved = {}, {0: ({}, None)}
  for event in events:
    if event == 'checkpoint':
      saved[round_num] = (dict(live), states.summary(round_num))
    elif event == 'resume':
      # From the newest checkpoint, or, as if that were damaged, the one before.
      round_num = sorted(saved)[-2:][0]
      # States of earlier ones may have been collected.
      saved = {round_num: saved[round_num]}
      states = ClientStates(directory)
      states.discard_after(round_num)
      live, summary = saved[round_num]
      live = dict(live)
      if summary is not None:
        states.require_as_after(round_num, summary)
    else:
      round_num += 1
      _write(states, round_num, [bytes([97 + c]) for c in sorted(event)])
      live |= dict.fromkeys(event, round_num)
      states.collect(sorted(saved)[-2:])
    for client in range(5):
      version = _round_of(states, bytes([97 + client]), round_num + 1)
      assert version == live.get(client)
  num_files = len(list(directory.glob('client_states/*/*.safetensors')))
  assert num_files <= 3 * max(len(live), 5)


class TestDamage:
  """One line each, which names the file."""

  @pytest.fixture
  def states(self, tmp_path):
    states = ClientStates(tmp_path)
    _write(states, 1, [b'a', b'b'])
    _write(states, 2, [b'b'])
    # Another process, which has not written them.
    return ClientStates(tmp_path)

  @pytest.fixture
  def path(self, tmp_path):
    return tmp_path / 'client_states' / 'round_00000001' / '0000.safetensors'

  def test_a_flipped_bit(self, states, path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    words = f"'{path}' is damaged: it must have SHA-256 "
    with pytest.raises(UserError, match=words):
      states.path_for(b'a', 3)
    with pytest.raises(UserError, match=words):
      list(states.verify(2))
    # Others are as they were.
    assert _round_of(states, b'b', 3) == 2

  def test_a_file_that_is_gone(self, states, path):
    path.unlink()
    words = f"'{path}' is damaged: it cannot be read"
    with pytest.raises(UserError, match=words):
      states.path_for(b'a', 3)
    with pytest.raises(UserError, match=words):
      states.require_as_after(2, states.summary(2))

  def test_states_that_are_gone(self, states, tmp_path):
    summary = states.summary(2)
    shutil.rmtree(tmp_path / 'client_states')
    with pytest.raises(UserError) as caught:
      ClientStates(tmp_path).require_as_after(2, summary)
    assert str(caught.value) == (
      f"'{tmp_path}/client_states' lacks the client states of round 2: 2 "
      f'clients expected, 0 found. {tensor_files.ADVICE}'
    )

  def test_states_of_another_run(self, states, tmp_path):
    other = ClientStates(tmp_path / 'other')
    _write(other, 2, [b'a', b'b'])
    with pytest.raises(UserError, match='2 clients expected, 2 found, others'):
      other.require_as_after(2, states.summary(2))

  @pytest.mark.usefixtures('states')
  def test_a_state_of_another_model(self, path):
    with pytest.raises(UserError) as caught:
      found = tensor_files.shapes(path)
      tensor_files.require_shapes(path, found, {'model/0': (4,)})
    assert str(caught.value).startswith(
      f"'{path}' is of another model or method: tensor 'count/0' must have "
      'shape none, but has [].'
    )


def test_states_of_a_checkpoint(tmp_path):
  states = ClientStates(tmp_path)
  directory = tmp_path / 'checkpoints'
  for round_num in (1, 2, 3):
    _write(states, round_num, [b'a'])
    states.collect({1, 2} if round_num < 3 else {2})
    contents = {'client_states': states.summary(round_num)}
    checkpoint_writer.save_checkpoint(directory, round_num, {}, contents)
  for round_num in (2, 3):
    checkpoint = checkpoints.load_checkpoint(
      checkpoints.path_of(directory, round_num)
    )
    opened = states_of_checkpoint(checkpoint)
    assert _round_of(opened, b'a', 9) == round_num
  first = checkpoints.load_checkpoint(checkpoints.path_of(directory, 1))
  with pytest.raises(UserError) as caught:
    states_of_checkpoint(first)
  assert str(caught.value) == (
    '`--checkpoint` is of round 1, whose client states are no longer stored. '
    'Name the last checkpoint, of round 3.'
  )


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


def test_outputs_become_inputs(tmp_path):
  model = np.float32([1 / 3, 1e-30, -2])
  output = {'is_valid': 1, 'model': (model,), 'count': (np.int64(7),)}
  states = ClientStates(tmp_path)
  with states.begin(1) as writer:
    write = client_inputs.output_writer(writer, [b'a', b'b', b'c'])
    write(0, output)
    write(1, output | {'is_valid': 0})
    write(2, output)
    # Its worker was lost.
    write(2, None)
    states.commit()
  assert states.clients_of(1) == [b'a']
  path = os.fspath(states.path_for(b'a', 2))
  for kept, elements in (
    (KeptTensors(_SLOTS), []),
    (KeptTensors(_SLOTS, path), [model.tolist(), 7]),
  ):
    datasets = kept.datasets()
    assert list(datasets) == ['model', 'count']
    values = [
      np.asarray(tensor).tolist()
      for dataset in datasets.values()
      for element in dataset
      for tensor in element
    ]
    assert values == elements
    (spec,) = datasets['model'].element_spec
    assert (spec.shape, spec.dtype.name) == ([3], 'float32')
  # 3 float32 and an int32.
  assert client_inputs.num_bytes(_SLOTS) == 16
