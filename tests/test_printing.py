"""Tables and counts as commands print them."""

import re

import pytest

from tff_fedfish import printing


@pytest.mark.parametrize(
  ('number', 'text'), [(0, '0 groups'), (1, '1 group'), (2000, '2,000 groups')]
)
def test_count(number, text):
  assert printing.count(number, 'group') == text


def test_cells_are_data(capsys):
  printing.print_table(
    ':x: [bold]', ['id', 'count'], [['[red]a', '1'], [':x:']]
  )
  lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
  assert lines == [
    ':x: [bold]',
    '',
    '  id       count',
    ' ────────────────',
    '  [red]a       1',
    '  :x:',
    '',
  ]


def test_a_pipe_has_room(capsys, monkeypatch):
  # What a shell says of the terminal is not the width of the pipe.
  monkeypatch.setenv('COLUMNS', '20')
  cells = ['n' * 90, 'word ' * 20]
  printing.print_table('t' * 150, ['', ''], [cells], text_columns=(0, 1))
  out = capsys.readouterr().out
  assert out.startswith('t' * 150 + '\n')
  assert f'{cells[0]}   {cells[1].rstrip()}' in out


@pytest.fixture(name='printed_at')
def _printed_at(capsys, monkeypatch):
  """Prints a table in a terminal of a width; returns its lines."""
  monkeypatch.setenv('FORCE_COLOR', '1')
  monkeypatch.setenv('TERM', 'xterm')

  def print_at(width, *table, **options):
    monkeypatch.setenv('COLUMNS', str(width))
    printing.print_table(*table, **options)
    text = re.sub(r'\x1b\[[0-9;]*m', '', capsys.readouterr().out)
    return [line.rstrip() for line in text.splitlines()]

  return print_at


@pytest.mark.parametrize('width', [120, 80, 60, 40, 20])
def test_numbers_are_never_cut(printed_at, width):
  headings = ['Run', *(f'Held-out\nLoss\n{n} %' for n in range(8)), 'Seconds']
  rows = [
    [f'FedAvg, E = {n}', *(f'{n}.{k}93 *' for k in range(9))] for n in (1, 8)
  ]
  lines = printed_at(width, 'Title', headings, rows)
  text = '\n'.join(lines)
  assert '…' not in text
  for row in rows:
    assert all(cell in text for cell in row[1:])
  if width > 20:
    assert max(map(len, lines)) <= width


def test_a_long_word_is_folded(printed_at):
  name = 'runs/' + 'mine' * 20
  lines = printed_at(60, 'T', ['run', 'loss'], [[name, '6.123']])
  assert name in ''.join(line.split('6.123')[0].strip() for line in lines)


def test_headings_are_folded_and_rows_become_lines(printed_at):
  table = ['T', ['', 'long heading', 'b'], [['x', '123456', '1'], ['y', '2']]]
  assert printed_at(20, *table) == [
    'T',
    '',
    '          long',
    '       heading   b',
    ' ──────────────────',
    '  x     123456   1',
    '  y          2',
    '',
  ]
  assert printed_at(16, *table) == [
    'T',
    'x,',
    '  long heading 123456,',
    '  b 1',
    'y,',
    '  long heading 2',
  ]


@pytest.mark.parametrize(
  ('num_bytes', 'text'),
  [
    (0, '0 B'),
    (1023, '1,023 B'),
    (1536, '1.50 KiB'),
    (20 * 2**20, '20.0 MiB'),
    (335_210_496 * 4, '1.25 GiB'),
    (2**60, '1,024 PiB'),
  ],
)
def test_bytes(num_bytes, text):
  assert printing.format_bytes(num_bytes) == text


@pytest.mark.parametrize(
  ('number', 'text'),
  [(12, '12 FLOP'), (3_100_000, '3.10 MFLOP'), (606 * 10**12, '606 TFLOP')],
)
def test_flops(number, text):
  assert printing.format_flops(number) == text


@pytest.mark.parametrize(
  ('seconds', 'text'),
  [
    (0.0123, '12.3 ms'),
    (3.42, '3.42 s'),
    (59.94, '59.9 s'),
    (125, '2 min 05 s'),
    (7_500, '2 h 05 min'),
    (268_000, '3.1 d'),
  ],
)
def test_seconds(seconds, text):
  assert printing.format_seconds(seconds) == text
