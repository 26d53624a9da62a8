"""Compares runs whose clients keep tensors."""

from tff_fedfish.run import checkpoints
from tff_fedfish.run.client_states import ClientStates


def live_states(run):
  """Returns the bytes of every client's newest state."""
  states = ClientStates(run)
  return {
    client_id: (
      version.round_num,
      states.path_for(client_id, 10**8).read_bytes(),
    )
    for client_id, version in states._newest(10**8)
  }


def assert_same_run(run, expected):
  """Compares metrics.csv, the last checkpoint and the live states."""
  name = 'metrics.csv'
  assert (run / name).read_bytes() == (expected / name).read_bytes()
  found, wanted = (
    checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(path))
    for path in (run, expected)
  )
  assert found.contents == wanted.contents
  for name, tensor in wanted.tensors.items():
    assert found.tensors[name].tobytes() == tensor.tobytes(), name
  assert live_states(run) == live_states(expected)
