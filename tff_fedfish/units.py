"""Large numbers in units that are read at a glance."""


def format_bytes(num_bytes: int) -> str:
  """Returns bytes with three digits or more, such as '1.25 GiB'."""
  return _scaled(num_bytes, 1024, ['B', *(f'{p}iB' for p in 'KMGTP')])


def format_flops(num_operations: int) -> str:
  """Returns operations, such as '3.10 TFLOP'."""
  return _scaled(num_operations, 1000, [f'{p}FLOP' for p in ('', *'kMGTPEZ')])


def format_seconds(seconds: float) -> str:
  """Returns a duration, such as '12 ms', '3.4 s', '2 h 05 min' or '3.1 d'."""
  if seconds < 1:
    return f'{1000 * seconds:.3g} ms'
  if seconds < 60:
    return f'{seconds:.3g} s'
  if seconds < 3600:
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes} min {rest:02d} s'
  if seconds < 2 * 86_400:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f'{hours} h {minutes:02d} min'
  return f'{seconds / 86_400:,.1f} d'


def _scaled(value, base, units):
  unit = 0
  while value >= base and unit + 1 < len(units):
    value /= base
    unit += 1
  digits = 0 if unit == 0 else 2 if value < 10 else 1 if value < 100 else 0
  return f'{value:,.{digits}f} {units[unit]}'
