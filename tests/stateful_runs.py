"""Compares runs whose clients keep tensors."""

from tff_fedfish.run import checkpoints, store


def live_states(run):
  """Returns round and bytes of every client's newest state."""
  states, newest = store.RoundStore(run / store.CLIENT_STATES), {}
  for round_num in states.rounds():
    files = store.by_client(states.manifest(round_num).files)
    for client_id, entry in files.items():
      path = states.path(round_num) / entry.file
      if path.exists():
        newest[client_id] = round_num, path.read_bytes()
  return newest


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
