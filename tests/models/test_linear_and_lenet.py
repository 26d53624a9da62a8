"""The plainest image models: counts and logits by hand, sizes, first draw."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from models import lenet
from models.image_classifier import IMAGE_CLASSIFIERS, initial_weights
from models.image_model_config import (
  ImageModelConfig,
  fed_net_cnn_shapes,
  lenet_shapes,
)
from models.model_shapes import num_parameters
from models.permutations import permutation_groups


def _shape(name, image_shape=(28, 28, 1), num_classes=10, widths=None):
  return ImageModelConfig(
    name=name,
    num_classes=num_classes,
    image_shape=image_shape,
    widths=widths,
  )


def test_parameter_counts_by_hand():
  # 28*28*10 + 10.
  assert num_parameters(_shape('linear')) == 7_850
  # conv 5*5*1*6 = 150; conv 5*5*6*16 = 2,400; 28 - 4 = 24, pooled 12,
  # 12 - 4 = 8, pooled 4: 4*4*16 = 256 features; 256*120 = 30,720;
  # 120*84 = 10,080; 84*10 = 840. FedFisher's 44,190 together.
  assert num_parameters(_shape('lenet')) == 44_190
  # conv 5*5*3*32 = 2,400; conv 5*5*32*64 = 51,200; 32 - 4 = 28, pooled 14,
  # 14 - 4 = 10, pooled 5: 5*5*64 = 1,600 features; 1,600*512 = 819,200;
  # 512*128 = 65,536; 128*10 = 1,280. FedFisher's 939,616 together.
  assert num_parameters(_shape('fed_net_cnn', (32, 32, 3))) == 939_616


def test_convolved_values_by_hand():
  assert _shape('linear').num_convolved() == 0
  # 24*24*6 = 3,456 and 8*8*16 = 1,024.
  assert _shape('lenet').num_convolved() == 4_480
  # 12*16*6 = 1,152; pooled 6 x 8, less 4 each: 2*4*16 = 128.
  assert _shape('lenet', (16, 20, 3)).num_convolved() == 1_280
  # 28*28*32 = 25,088 and 10*10*64 = 6,400.
  assert _shape('fed_net_cnn', (32, 32, 3)).num_convolved() == 31_488


def test_other_widths_by_hand():
  lenet_3 = _shape('lenet', (16, 20, 3), widths=(2, 3, 5, 4))
  # conv 5*5*3*2 = 150; conv 5*5*2*3 = 150; maps of 1 x 2 pixels, 6 features;
  # 6*5 = 30; 5*4 = 20; 4*10 = 40.
  assert num_parameters(lenet_3) == 390
  # 12*16*2 = 384 and 2*4*3 = 24.
  assert lenet_3.num_convolved() == 408
  cnn = _shape('emnist_cnn', (8, 7, 1), widths=(2, 3, 4))
  # conv 9*2 + 2 = 20; conv 9*2*3 + 3 = 57; 2 x 1 pixels, 6 features: 6*4 + 4 =
  # 28; 4*10 + 10 = 50.
  assert num_parameters(cnn) == 155
  # 6*5*2 = 60 and 4*3*3 = 36.
  assert cnn.num_convolved() == 96
  for shape in (lenet_3, cnn):
    groups = permutation_groups(shape)
    assert tuple(group.num_units for group in groups) == shape.widths
    weights = initial_weights(shape, 1)
    assert dataclasses.replace(shape, widths=None).widths_of(weights) == (
      shape.widths
    )
    model = IMAGE_CLASSIFIERS[shape.name]
    images = tf.ones([2, *shape.image_shape])
    assert model.logits(weights, images).shape == [2, 10]
    assert model.features(weights, images).shape == [2, 4]


@pytest.mark.parametrize(
  ('name', 'widths', 'words'),
  [
    ('lenet', (6, 16, 120), '4 numbers of at least 1, or None with'),
    ('emnist_cnn', (6, 0, 120), '3 numbers of at least 1, or None with'),
    ('linear', (), "None with 'linear', found"),
    ('resnet18', (64,), "None with 'resnet18', found"),
  ],
)
def test_wrong_widths(name, widths, words):
  with pytest.raises(ValueError, match=f'`widths` must be {words}'):
    _shape(name, widths=widths)


def test_logits_of_the_linear_model_by_hand():
  model = IMAGE_CLASSIFIERS['linear']
  # 1 x 2 pixels of two channels, divided by 255: 0.2, 0; 1, 0.4.
  images = tf.constant([[[[51, 0], [255, 102]]]], tf.uint8)
  kernel = tf.constant([[1.0, -1], [5, 5], [2, 0], [-1, 3]])
  bias = tf.constant([0.5, -1])
  # 0.2*1 + 0*5 + 1*2 - 0.4*1 + 0.5 = 2.3; -0.2 + 0 + 0 + 0.4*3 - 1 = 0.
  np.testing.assert_allclose(
    model.logits((kernel, bias), model.normalize(images)),
    [[2.3, 0.0]],
    atol=1e-6,
  )


def test_logits_of_lenet_by_hand():
  image = np.zeros((1, 16, 16, 1), np.float32)
  image[0, 6:10, 4:8] = 1
  image[0, 7, 5] = 3
  conv_1, conv_2, hidden_1, hidden_2, head = (
    np.zeros(shape, np.float32)
    for shape in lenet_shapes(2, (16, 16, 1)).values()
  )
  # Channel 2 is twice the pixel 4 rows below: 2 at rows 2 to 5 of columns 4 to
  # 7, but 6 at (3, 5); pooled 6 at (1, 2) and 2 at (1, 3), (2, 2) and (2, 3).
  # Channel 3 is negative there, so 0 after the ReLU.
  conv_1[4, 0, 0, 2], conv_1[4, 0, 0, 3] = 2, -1
  # 6 * 0.5 = 3 at (0, 0) and 1 elsewhere, pooled 3; -6 and -2, which become 0.
  conv_2[1, 2, 2, 0], conv_2[1, 2, 2, 1], conv_2[1, 2, 3, 0] = 0.5, -1, 9
  # 3 * 2 = 6; -3, which becomes 0; 0 * -1 = 0.
  hidden_1[0, 0], hidden_1[0, 1], hidden_1[1, 2] = 2, -1, -1
  # 6 + 0 * 7 = 6; -6, which becomes 0; 6 * 0.5 = 3.
  hidden_2[0, 0], hidden_2[1, 0], hidden_2[0, 1], hidden_2[0, 2] = 1, 7, -1, 0.5
  # 6 - 3 * 3 = -3; 0 * 5 + 3 = 3.
  head[0, 0], head[2, 0], head[1, 1], head[2, 1] = 1, -3, 5, 1
  weights = conv_1, conv_2, hidden_1, hidden_2, head
  features = lenet.features(weights, image)
  np.testing.assert_array_equal(features[0, :4], [6, 0, 3, 0])
  np.testing.assert_array_equal(lenet.logits(weights, image), [[-3, 3]])


@pytest.mark.parametrize('name', ['linear', 'lenet', 'fed_net_cnn'])
@pytest.mark.parametrize('image_shape', [(16, 16, 1), (32, 32, 3), (16, 21, 3)])
def test_other_images(name, image_shape):
  model, shape = IMAGE_CLASSIFIERS[name], _shape(name, image_shape, 3)
  images = np.random.RandomState(0).randint(256, size=(2, *image_shape))
  images = model.normalize(tf.constant(images, tf.uint8))
  logits = model.logits(initial_weights(shape, 1), images)
  assert logits.shape == [2, 3]
  # Two images, two results.
  assert np.all(logits[0] != logits[1])


@pytest.mark.parametrize(
  ('name', 'shapes'),
  [('lenet', lenet_shapes), ('fed_net_cnn', fed_net_cnn_shapes)],
)
def test_images_too_small_for_two_convolutions(name, shapes):
  words = '`image_shape` must have at least 16 x 16 pixels, found '
  with pytest.raises(ValueError, match=words + '15 x 28'):
    shapes(10, (15, 28, 1))
  with pytest.raises(ValueError, match=words + '28 x 15'):
    _shape(name, (28, 15, 1)).weight_shapes()


@pytest.mark.parametrize(
  ('name', 'kernel', 'limit'),
  [
    ('linear', 'head/kernel', math.sqrt(6 / (784 + 10))),
    ('lenet', 'conv_2/kernel', math.sqrt(6 / (25 * (6 + 16)))),
    ('lenet', 'hidden_1/kernel', math.sqrt(6 / (256 + 120))),
    ('fed_net_cnn', 'hidden_2/kernel', math.sqrt(6 / (512 + 128))),
  ],
)
def test_kernels_are_glorot_uniform_and_a_function_of_the_seed(
  name, kernel, limit
):
  names = _shape(name).weight_shapes()
  drawn, again, other = (
    dict(zip(names, initial_weights(_shape(name), seed), strict=True))
    for seed in (3, tf.constant(3), 4)
  )
  for tensor, weight in drawn.items():
    assert weight.dtype == tf.float32
    np.testing.assert_array_equal(weight, again[tensor])
    is_kernel = tensor.endswith('/kernel')
    assert np.any(weight != other[tensor]) == is_kernel
    assert np.any(weight != 0) == is_kernel
  # Of at least 2,400 draws all stay below 0.99 with a chance of 3e-11.
  assert 0.99 * limit < np.abs(drawn[kernel]).max() <= limit
