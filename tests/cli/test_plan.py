"""`fedfish plan` as a user meets it."""

COMMANDS = {'plan': 'tff_fedfish.cli.plan'}


def test_without_timing(fedfish):
  code, out, err = fedfish(
    'plan', '--config', 'demo', '--no_timing',
    '--config.cohorts.cohort_size=5',
    '--config.algorithm.name=own_methods.noisy_mean',
  )  # fmt: skip
  assert (code, err) == (0, '')
  assert 'A round of 5 clients, at most:' in out
  assert 'Peak memory of the process  ' in out
  assert 'Time of a round' not in out


def test_times_and_prints(fedfish, monkeypatch):
  from tff_fedfish.planning import step_time

  monkeypatch.setattr(step_time, 'step_seconds', lambda config: 0.5)
  code, out, _ = fedfish('plan', '--config', 'demo')
  assert code == 0
  # 8 clients of 2 steps and 2 gradients more.
  assert 'Time of a round 16 s; ' in ' '.join(out.split())


def test_a_rate_in_place_of_timing(fedfish):
  code, out, err = fedfish('plan', '--config', 'demo', '--tflops', '400')
  assert (code, err) == (0, '')
  assert 'Time at 400 TFLOP/s' in out and 'Time of a round' not in out
  code, out, err = fedfish('plan', '--config', 'demo', '--tflops', '-1')
  assert (code, out) == (2, '')
  assert '--tflops must be above 0, found -1' in err


def test_unknown_setting(fedfish):
  code, out, err = fedfish('plan', '--config', 'demo', '--config.model.with=3')
  assert (code, out, err.count('\n')) == (2, '', 1)
  assert '`--config.model.with` is unknown' in err
