"""The image models as functions: sizes and values by hand, seeds."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from models.image_models import (
  IMAGE_CLASSIFIERS,
  group_norm,
  initial_weights,
  random_crop_and_flip,
)
from models.model_shapes import are_matrices, num_parameters, weight_shapes

_EMNIST, _CIFAR = (28, 28, 1), (32, 32, 3)


def _shape(name, image_shape=None, num_classes=10, **options):
  image_shape = image_shape or IMAGE_CLASSIFIERS[name].image_shape
  return ImageModelConfig(
    name=name, num_classes=num_classes, image_shape=image_shape, **options
  )


def _images(shape, batch=3, seed=0):
  pixels = np.random.RandomState(seed).randint(256, size=(batch, *shape))
  return tf.constant(pixels, tf.uint8)


@pytest.fixture(scope='module')
def resnet_weights():
  shape = _shape('resnet18')
  return dict(
    zip(shape.weight_shapes(), initial_weights(shape, 1), strict=True)
  )


@pytest.mark.parametrize(
  ('shape', 'num_weights', 'num_convolved'),
  [
    # conv 3*3*1*32 + 32 = 320; conv 3*3*32*64 + 64 = 18,496; 28 - 4 = 24,
    # pooled 12: 12*12*64 = 9,216 features; 9,216*128 + 128 = 1,179,776; 128*62
    # + 62 = 7,998. Together the number of the paper.
    (_shape('emnist_cnn', _EMNIST, 62), 1_206_590, 26**2 * 32 + 24**2 * 64),
    # stem 3*3*3*64 + 2*64 = 1,856
    # 64:  4 convolutions 9*64*64 + 128 = 36,992 each: 147,968
    # 128: 9*64*128 + 256 = 73,984; 3 of 9*128*128 + 256 = 147,712 each;
    #      shortcut 64*128 + 256 = 8,448: together 525,568
    # 256: 295,424 + 3 * 590,336 + 33,280 = 2,099,712
    # 512: 1,180,672 + 3 * 2,360,320 + 132,096 = 8,393,728
    # head 512*100 + 100 = 51,300. 5 maps of 32*32*64, and with shortcuts 5 each
    # of half the side and twice the channels.
    (_shape('resnet18', _CIFAR, 100), 11_220_132, 5 * 32**2 * 64 * 15 // 8),
    # 28*28*10 + 10.
    (_shape('linear'), 7_850, 0),
    # conv 150; conv 5*5*6*16 = 2,400; 28 - 4 = 24, pooled 12, 12 - 4 = 8,
    # pooled 4: 4*4*16 = 256; 256*120 + 120*84 + 84*10. FedFisher's number.
    (_shape('lenet'), 44_190, 24**2 * 6 + 8**2 * 16),
    # conv 2,400; conv 5*5*32*64 = 51,200; 28, 14, 10, 5: 5*5*64 = 1,600;
    # 1,600*512 + 512*128 + 128*10. FedFisher's number.
    (_shape('fed_net_cnn'), 939_616, 28**2 * 32 + 10**2 * 64),
    # conv 5*5*3*2 = 150; conv 5*5*2*3 = 150; maps of 12 x 16 pixels, then 2 x
    # 4, pooled 1 x 2, 6 features; 6*5 = 30; 5*4 = 20; 4*10 = 40.
    (_shape('lenet', (16, 20, 3), widths=(2, 3, 5, 4)), 390, 384 + 24),
  ],
  ids=str,
)
def test_sizes_by_hand(shape, num_weights, num_convolved):
  assert num_parameters(shape) == num_weights
  assert shape.num_convolved() == num_convolved
  flags = zip(weight_shapes(shape), are_matrices(shape), strict=True)
  assert all(is_matrix == n.endswith('/kernel') for n, is_matrix in flags)


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (dict(name='vgg'), '`name` must be one of emnist_cnn, .*, fed_net_cnn, '),
    (dict(num_classes=0), '`num_classes` must be at least 1, found 0'),
    (dict(image_shape=(8, 0, 1)), '`image_shape` must be at least 1, found 0'),
    (dict(name='lenet', image_shape=(28, 15, 1)), '16 x 16 .* found 28 x 15'),
    (dict(name='emnist_cnn', image_shape=(5, 9, 1)), '6 x 6 .* found 5 x 9'),
  ],
)
def test_wrong_shapes(values, words):
  values = dict(name='resnet18', num_classes=1, image_shape=_CIFAR) | values
  with pytest.raises(ValueError, match=words):
    ImageModelConfig(**values).weight_shapes()


@pytest.mark.usefixtures('two_blocks')
class TestEveryModel:
  def test_tables_have_the_same_models(self):
    assert IMAGE_MODELS == tuple(IMAGE_CLASSIFIERS)

  @pytest.mark.parametrize('name', IMAGE_MODELS)
  def test_initial_weights_are_a_function_of_the_seed(self, name):
    shape = _shape(name)
    drawn, again, other = (
      initial_weights(shape, seed) for seed in (3, tf.constant(3), 4)
    )
    for (weight, size), *tensors in zip(
      shape.weight_shapes().items(), drawn, again, other, strict=True
    ):
      first, second, third = (tensor.numpy() for tensor in tensors)
      assert first.shape == size and first.dtype == np.float32
      np.testing.assert_array_equal(first, second)
      if weight.endswith('/kernel'):
        assert np.any(first != third)
      else:
        np.testing.assert_array_equal(first, weight.endswith('/scale'))

  @pytest.mark.parametrize('name', IMAGE_MODELS)
  def test_every_weight_has_a_gradient_at_any_batch_size(self, name):
    model, shape = IMAGE_CLASSIFIERS[name], _shape(name, (16, 21, 3))
    weights = initial_weights(shape, 1)

    @tf.function(input_signature=[tf.TensorSpec([None, *shape.image_shape])])
    def gradients_of(images):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = model.logits(weights, images, dropout_seed=tf.constant([1, 2]))
        loss = tf.reduce_sum(tf.nn.log_softmax(logits)[:, 0])
      return logits, tape.gradient(loss, weights)

    for batch in (1, 3):
      images = _images(shape.image_shape, batch=batch)
      augmented = model.augment(images, tf.constant([1, 2]))
      assert augmented.shape == images.shape
      logits, gradients = gradients_of(model.normalize(augmented))
      assert logits.shape == [batch, 10] and logits.dtype == tf.float32
      for gradient in gradients:
        assert np.isfinite(gradient).all() and np.any(gradient != 0)

  @pytest.mark.parametrize(
    ('name', 'width'),
    # The second block of the cut ResNet has 64 channels.
    zip(IMAGE_MODELS, (128, 64, 10, 84, 128), strict=True),
  )
  def test_logits_are_the_head_of_the_features(self, name, width):
    model, shape = IMAGE_CLASSIFIERS[name], _shape(name)
    # Biases begin at 0, with which none would be missed.
    weights = [w + 0.01 for w in initial_weights(shape, 1)]
    images = model.normalize(_images(model.image_shape))
    features = expected = model.features(weights, images)
    assert features.shape == [3, width] and features.dtype == tf.float32
    if name != 'linear':
      named = dict(zip(shape.weight_shapes(), weights, strict=True))
      expected = tf.matmul(features, named['head/kernel'])
      expected += named.get('head/bias', 0.0)
    np.testing.assert_array_equal(model.logits(weights, images), expected)


@pytest.mark.parametrize(
  ('name', 'kernel', 'stddev'),
  [
    # Glorot: uniform within sqrt(6 / fans), a deviation of sqrt(2 / fans).
    ('emnist_cnn', 'conv_2/kernel', math.sqrt(2 / (9 * (32 + 64)))),
    ('linear', 'head/kernel', math.sqrt(2 / (784 + 10))),
    ('lenet', 'hidden_1/kernel', math.sqrt(2 / (256 + 120))),
    # He: normal; fan in 9 * 512 = 4,608.
    ('resnet18', 'stage_4/block_2/conv_2/kernel', math.sqrt(2 / 4_608)),
    ('resnet18', 'head/kernel', math.sqrt(1 / 512)),
  ],
)
def test_deviation_of_initial_kernels(name, kernel, stddev, resnet_weights):
  if name == 'resnet18':
    values = resnet_weights[kernel].numpy()
  else:
    index = list(_shape(name).weight_shapes()).index(kernel)
    values = initial_weights(_shape(name), 3)[index].numpy()
    assert np.abs(values).max() <= math.sqrt(3) * stddev
  # At least 5,120 draws, whose deviation deviates by 1 %.
  assert values.std() == pytest.approx(stddev, rel=0.05)


@pytest.mark.parametrize(
  ('name', 'image_shape'),
  # Pooling drops a row of the first, 9 - 4 = 5, and a column of the second.
  [('emnist_cnn', (9, 8, 2)), ('lenet', (16, 19, 1)), ('linear', (3, 4, 2))],
)
def test_logits_equal_a_forward_pass_in_numpy(name, image_shape):
  random = np.random.RandomState(0)
  shapes = _shape(name, image_shape, 5).weight_shapes()
  weights = {
    n: random.normal(size=s).astype('f') * 0.3 for n, s in shapes.items()
  }
  images = random.normal(size=(3, *image_shape)).astype('f')

  def of(layer):
    return weights[f'{layer}/kernel'], weights.get(f'{layer}/bias', 0.0)

  layers, outputs = {n.partition('/')[0]: None for n in shapes}, images
  for layer in (layer for layer in layers if layer.startswith('conv')):
    kernel, bias = of(layer)
    side = len(kernel)
    height, width = outputs.shape[1] - side + 1, outputs.shape[2] - side + 1
    convolved = bias + sum(
      outputs[:, i : i + height, j : j + width] @ kernel[i, j]
      for i, j in itertools.product(range(side), range(side))
    )
    outputs = np.maximum(convolved, 0)
    if layer == 'conv_2' or name == 'lenet':
      rows, columns = height // 2 * 2, width // 2 * 2
      outputs = np.max(
        [outputs[:, i:rows:2, j:columns:2] for i in (0, 1) for j in (0, 1)],
        axis=0,
      )
  outputs = outputs.reshape(3, -1)
  for layer in (layer for layer in layers if layer.startswith('hidden')):
    kernel, bias = of(layer)
    outputs = np.maximum(outputs @ kernel + bias, 0)
  kernel, bias = of('head')
  found = IMAGE_CLASSIFIERS[name].logits(tuple(weights.values()), images)
  np.testing.assert_allclose(
    found, outputs @ kernel + bias, rtol=1e-4, atol=1e-4
  )


def test_both_dropouts_of_the_cnn_have_their_rates():
  # All kernels 1 / fan in and all inputs 1: without dropout every feature,
  # every hidden unit and the logit are 1. 6 x 6 pixels give 64 features: with
  # dropout a hidden unit is their mean, each kept with probability 3/4, of
  # variance (4/3 - 1) / 64 = 0.00521; the logit is the mean of 128 times this
  # number, each kept with probability 1/2, of variance (2 - 1) / 128 =
  # 0.00781. Of the product: 0.00521 + 0.00781 + 0.00004 = 0.01306.
  # Without the first it would be 0.0078, with rates exchanged 0.0183.
  shapes = _shape('emnist_cnn', (6, 6, 1), 1).weight_shapes().values()
  weights = [
    tf.fill(s, 1 / math.prod(s[:-1])) if len(s) > 1 else tf.zeros(s)
    for s in shapes
  ]
  model, images = IMAGE_CLASSIFIERS['emnist_cnn'], tf.ones([4_000, 6, 6, 1])

  def run(seed):
    return model.logits(weights, images, dropout_seed=seed).numpy()

  np.testing.assert_allclose(run(None), 1, rtol=1e-5)
  found = run([5, 6])
  assert abs(found.mean() - 1) < 5 * math.sqrt(0.01306 / 4_000)
  # The variance of 4,000 has a relative deviation of sqrt(2 / 4000) = 2.2 %.
  assert abs(found.var() / 0.01306 - 1) < 0.11
  np.testing.assert_array_equal(found, run([5, 6]))
  assert np.abs(found - run([5, 7])).max() > 1e-3


def test_group_norm_by_hand():
  # Two positions, four channels, two groups.
  # group 0: 1, 3, 5, 7: mean 4, variance 5; group 1: 0, 0, 0, 4: 1 and 3.
  inputs = tf.constant([[[[1.0, 3, 0, 0], [5, 7, 0, 4]]]])
  five, three = math.sqrt(5), math.sqrt(3)
  expected = [
    [-3 / five, -1 / five, -1 / three, -1 / three],
    [1 / five, 3 / five, -1 / three, 3 / three],
  ]
  # Another image in the batch changes nothing.
  for images in (inputs, tf.concat([inputs, 9 * inputs + 1], axis=0)):
    found = group_norm(images, num_groups=2)
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-5)


def test_shortcuts_of_the_resnet_are_added(resnet_weights):
  # With scale 0 in the second norm of every block a block adds nothing: what is
  # left is the stem, the three projections and the head.
  named = {
    name: tf.zeros_like(w) if name.endswith('conv_2/norm/scale') else w
    for name, w in resnet_weights.items()
  }
  images = tf.random.stateless_normal([2, 32, 32, 3], [1, 2])
  outputs = tf.nn.conv2d(images, named['stem/kernel'], 1, 'SAME')
  outputs = tf.nn.relu(group_norm(outputs))
  for stage in (2, 3, 4):
    kernel = named[f'stage_{stage}/block_1/shortcut/kernel']
    outputs = tf.nn.conv2d(outputs, kernel, 2, 'SAME')
    outputs = tf.nn.relu(group_norm(outputs))
  assert outputs.shape == [2, 4, 4, 512]
  np.testing.assert_allclose(
    IMAGE_CLASSIFIERS['resnet18'].logits(tuple(named.values()), images),
    tf.matmul(tf.reduce_mean(outputs, [1, 2]), named['head/kernel']),
    atol=1e-4,
  )


def test_images_are_made_ready():
  images = tf.constant([[[[0]], [[51]], [[255]]]], tf.uint8)
  for name in ('emnist_cnn', 'linear', 'lenet', 'fed_net_cnn'):
    found = IMAGE_CLASSIFIERS[name].normalize(images)
    np.testing.assert_allclose(found[0, :, 0, 0], [0, 0.2, 1], rtol=1e-6)
  augmented = IMAGE_CLASSIFIERS['emnist_cnn'].augment(images, [1, 2])
  np.testing.assert_array_equal(augmented, images)
  # First: mean 30, deviation 10; second: mean 100, deviation 100.
  images = np.array([[20, 40, 20, 40], [0, 200, 200, 0]], np.uint8)
  model = IMAGE_CLASSIFIERS['resnet18']
  found = model.normalize(tf.constant(images.reshape(2, 2, 2, 1)))
  np.testing.assert_allclose(
    tf.reshape(found, [2, 4]), [[-1, 1, -1, 1], [-1, 1, 1, -1]], rtol=1e-5
  )


class TestCropAndFlip:
  def _places(self, images, cropped, padding=2):
    """Returns (row, column, flip) of the window that each result is."""
    places, sizes = [], range(2 * padding + 1)
    margin = [padding, padding]
    for image, result in zip(images.numpy(), cropped.numpy(), strict=True):
      height, width, _ = image.shape
      padded = np.pad(image, [margin, margin, [0, 0]])
      (place,) = [
        (row, column, step < 0)
        for row, column, step in itertools.product(sizes, sizes, (1, -1))
        if np.array_equal(
          padded[row : row + height, column : column + width][:, ::step], result
        )
      ]
      places.append(place)
    return places

  def test_every_result_is_a_window_of_the_padded_image(self):
    # Distinct pixels, so that each window is recognized.
    images = _images((6, 5, 3), batch=300)
    cropped = random_crop_and_flip(images, [1, 2])
    assert cropped.dtype == tf.uint8 and cropped.shape == images.shape
    rows, columns, flips = zip(*self._places(images, cropped), strict=True)
    assert set(rows) == set(columns) == set(range(5))
    # 150 of 300 flipped, standard deviation 8.7.
    assert abs(sum(flips) - 150) < 44
    # Rows and columns are drawn apart: all 25 pairs among 300, but for a chance
    # of 25 * (24/25)^300 = 0.0001.
    assert len(set(zip(rows, columns, strict=True))) == 25
    again, other = (random_crop_and_flip(images, [1, s]) for s in (2, 3))
    np.testing.assert_array_equal(cropped, again)
    assert np.any(cropped != other)
