"""A fixture that makes the ResNet small."""

import pytest

from models import image_model_config


@pytest.fixture
def two_blocks(monkeypatch):
  """Cuts the ResNet to two of its eight blocks.

  The first has a plain shortcut and one channel in a norm's group; the second
  projects and has two.
  """
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)
