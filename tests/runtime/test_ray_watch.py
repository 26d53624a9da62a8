"""Parts of a cohort that take too long are told of."""

from tff_fedfish.runtime.ray_watch import LateParts


def test_when_a_line_is_due():
  now = 0.0
  late = LateParts(lambda: now)

  def due_at(*times):
    nonlocal now
    due = []
    for now in times:
      due += [(part, now) for part, _ in late.due()]
    return due

  for part, num_clients in (('a', 2), ('b', 1), ('c', 3)):
    late.begin(part, num_clients)
  # While none has ended: after ten minutes.
  assert due_at(599) == []
  assert due_at(600) == [('a', 600), ('b', 600), ('c', 600)]
  late.end('a')
  late.begin('d', 2)
  # (600 s of 2 clients, 300 s each) x 2 x 10 = 6,000 s after its start; the
  # others again at twice 600 s.
  assert due_at(1199, 1200) == [('b', 1200), ('c', 1200)]
  late.end('b')
  late.end('c')
  # The median of 300, 1,200 and 400 s: 8,000 s.
  assert due_at(8599, 8600, 8700, 16599, 16600) == [('d', 8600), ('d', 16600)]


def test_never_within_a_minute():
  now = 0.0
  late = LateParts(lambda: now)
  late.begin('a', 1)
  late.begin('b', 1)
  now = 1.0
  late.end('a')
  now = 59.0
  assert not list(late.due())
  now = 60.0
  assert list(late.due()) == [('b', 60.0)]
