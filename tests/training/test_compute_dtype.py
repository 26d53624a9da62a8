"""The compute dtype 'auto': timed once, kept with the run."""

import json

import planned_configs
import pytest
import small_runs

from tff_fedfish.training import compute_dtype


@pytest.mark.parametrize(
  ('ratio', 'dtype'), [(3.0, 'bfloat16'), (1.2, 'bfloat16'), (1.1, 'float32')]
)
def test_faster_type(monkeypatch, capsys, ratio, dtype):
  monkeypatch.setattr(compute_dtype, 'product_ratio', lambda config: ratio)
  config = planned_configs.by_hand(model__compute_dtype='auto')
  assert compute_dtype.with_faster(config).model.compute_dtype == dtype
  assert capsys.readouterr().err == (
    f'`model.compute_dtype`: {dtype} (products in bfloat16 are {ratio:.2f} '
    'times as fast as in float32).\n'
  )


def test_products_are_timed():
  config = planned_configs.by_hand(model__compute_dtype='auto')
  assert 0.001 < compute_dtype.product_ratio(config) < 1000
  # Where nothing is run, the model is float32's.
  assert config.transformer_config().compute_dtype == 'float32'


def test_resumed_with_the_type_that_was_found(
  small_inputs, tmp_path, monkeypatch
):
  settings = {'model__compute_dtype': 'auto', 'training__num_rounds': 1}
  monkeypatch.setattr(compute_dtype, 'product_ratio', lambda config: 2.0)
  assert small_runs.train(small_inputs, tmp_path / 'run', **settings) == 0

  def kept():
    text = (tmp_path / 'run' / 'config.json').read_text('utf-8')
    return json.loads(text)['model']['compute_dtype']

  assert kept() == 'bfloat16'
  # Another machine; nothing is timed again.
  monkeypatch.setattr(compute_dtype, 'product_ratio', lambda config: 0.5)
  settings['training__num_rounds'] = 2
  assert small_runs.train(small_inputs, tmp_path / 'run', **settings) == 0
  assert kept() == 'bfloat16'
