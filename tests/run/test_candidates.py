"""Models that a client is given, from what clients kept."""

import pickle

import numpy as np
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.methods.parts import Downloads
from tff_fedfish.run import candidates
from tff_fedfish.run.client_state import ClientStates

_CLIENTS = [b'd', b'a', b'c', b'b', b'e']
_SPECS = (((2,), 'float32'), ((), 'float32'))
_SLOTS = {'model': _SPECS, 'affinity': (((5,), 'float32'),)}


def _add(writer, index, client, round_num, affinity):
  # Position of the client and round tell models apart.
  number = _CLIENTS.index(client)
  tensors = {
    'model/0': np.array([number, round_num], np.float32),
    'model/1': np.float32(10 * number),
    'affinity/0': np.array(affinity, np.float32),
  }
  writer.add_client(index, client, tensors)


def _write(states, round_num, clients, affinity=(0, 0, 0, 0, 0)):
  writer = states.begin(round_num)
  for index, client in enumerate(clients):
    _add(writer, index, client, round_num, affinity)
  states.commit()


def _find(states, client, round_num, *, cohort_seed=2, **settings):
  values = dict(num_models=2, epsilon=0.0, epsilon_decay=0.0)
  return candidates.candidates_of(
    states,
    Downloads(**values | settings),
    _SLOTS,
    client,
    positions={c: n for n, c in enumerate(_CLIENTS)},
    round_num=round_num,
    cohort_seed=cohort_seed,
  )


def _positions(found):
  return [position for position, _ in found.models]


def _elements(found):
  """Returns (position, first tensor, second one) of each model."""
  return [
    (
      int(element['position']),
      element['weights'][0].numpy().tolist(),
      float(element['weights'][1]),
    )
    for element in found.dataset()
  ]


def test_who_comes_first_is_given_none(tmp_path):
  states = ClientStates(tmp_path)
  assert not _find(states, b'a', 1).models
  _write(states, 1, [b'a', b'b'])
  found = _find(states, b'c', 2)
  assert not found.models
  assert not list(found.dataset())


def test_own_model_then_those_of_the_round_before(tmp_path):
  states = ClientStates(tmp_path)
  _write(states, 1, [b'a', b'b', b'd'], affinity=[1, 0, 0, 2, 3])
  _write(states, 2, [b'b', b'c', b'd'])
  # Of round 2 it knows d, of affinity 1, and b, of affinity 2. Others are not
  # sent, whatever their affinity.
  found = _find(states, b'a', 3)
  assert _positions(found) == [1, 3, 0]
  assert _elements(found) == [
    (1, [1, 1], 10),
    (3, [3, 2], 30),
    (0, [0, 2], 0),
  ]
  assert _positions(_find(states, b'a', 3, num_models=1)) == [1, 3]
  # Its own is not sent to it, and it need not have been there.
  assert sorted(_positions(_find(states, b'b', 3))[1:]) == [0, 2]
  # Nobody took part in round 3.
  assert _positions(_find(states, b'a', 4)) == [1]
  # Workers are sent names of files.
  assert pickle.loads(pickle.dumps(found)) == found


def test_the_choice_is_a_function_of_seed_round_and_client(tmp_path):
  states = ClientStates(tmp_path)
  _write(states, 1, _CLIENTS)
  for round_num in range(2, 12):
    _write(states, round_num, _CLIENTS)

  def choices(**settings):
    return [
      [
        _positions(_find(states, c, n, epsilon=1.0, **settings))
        for c in (b'a', b'b')
      ]
      for n in range(2, 12)
    ]

  found = choices()
  assert found == choices()
  assert found != choices(cohort_seed=3)
  of_rounds = {tuple(a) for a, _ in found}
  assert len(of_rounds) > 1
  assert any(a[1:] != b[1:] for a, b in found)


def test_exploration_ends(tmp_path):
  states = ClientStates(tmp_path)
  for round_num in range(1, 40):
    _write(states, round_num, _CLIENTS, affinity=[9, 0, 8, 7, 6])
  best = [1, 0, 2]
  rounds = range(2, 41)
  found = [
    _positions(_find(states, b'a', n, epsilon=0.5, epsilon_decay=0.05))
    for n in rounds
  ]
  # 0.5 - 0.05 * 10 in round 11.
  assert all(choice == best for choice in found[9:])
  assert any(choice != best for choice in found[:9])


def test_a_round_that_is_being_written(tmp_path):
  states = ClientStates(tmp_path)
  _write(states, 1, [b'a', b'b', b'c'])
  writer = states.begin(2)
  for index, client in enumerate([b'a', b'b']):
    _add(writer, index, client, 2, [0, 0, 0, 1, 0])
  # Its clients are given what there was before, scores of it what there is.
  assert _elements(_find(states, b'a', 2))[0] == (1, [1, 1], 10)
  assert sorted(_positions(_find(states, b'a', 2))) == [1, 2, 3]
  now = _elements(_find(states, b'a', 3))
  assert now == [(1, [1, 2], 10), (3, [3, 2], 30)]
  # The same once it is committed; given up, nothing of it is left.
  states.commit()
  assert _elements(_find(states, b'a', 3)) == now
  with states.begin(3) as writer:
    _add(writer, 0, b'a', 3, [0, 0, 0, 0, 0])
  assert _positions(_find(states, b'a', 4)) == [1]
  assert _elements(_find(states, b'a', 4)) == [(1, [1, 2], 10)]


def test_a_damaged_model(tmp_path):
  _write(ClientStates(tmp_path), 1, [b'a', b'b'])
  states = ClientStates(tmp_path)
  path = states.path_for(b'b', 2)
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)
  with pytest.raises(UserError, match=f"'{path}' is damaged: "):
    _find(ClientStates(tmp_path), b'a', 2)
