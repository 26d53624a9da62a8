"""OTFusion: the average of models whose neurons were matched by transport."""

from tff_fedfish.methods.one_shot import OneShotConfig, one_shot_method

METHOD = one_shot_method(
  name='ot_fusion',
  title='OTFusion',
  summary=(
    'One-shot: the neurons of every model are matched with those of the first '
    'client by optimal transport, layer by layer, and averaged.'
  ),
  source='Singh and Jaggi (2020), "Model fusion via optimal transport"',
  settings=OneShotConfig,
  summary_of=lambda config: 'none',
  solver='tff_fedfish.methods.one_shot.ot_fusion_solve:solve',
  solve_models=lambda config, num_clients: 6,
  hue='#44AA99',
  hatch='oo',
)
