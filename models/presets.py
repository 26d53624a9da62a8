"""Named model sizes; plain values, importable without TensorFlow.

`350m` and `1.5b` are the sizes that Dhawan et al. (2024), "Leveraging function
space aggregation for federated learning at scale" (FedFish), pretrain.
"""

PRESETS: dict[str, dict[str, int]] = {
  'tiny': dict(num_layers=4, width=128, num_heads=4, vocabulary_size=2_048),
  'small': dict(num_layers=6, width=384, num_heads=6, vocabulary_size=8_192),
  '350m': dict(
    num_layers=24, width=1_024, num_heads=16, vocabulary_size=32_000
  ),
  '1.5b': dict(
    num_layers=48, width=1_600, num_heads=25, vocabulary_size=32_000
  ),
}
