"""The image models as functions: values by hand, seeds, gradients."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from models import emnist_cnn, image_model_config, resnet
from models.image_classifier import (
  IMAGE_CLASSIFIERS,
  initial_weights,
  random_crop_and_flip,
)
from models.image_model_config import (
  ImageModelConfig,
  emnist_cnn_shapes,
  resnet_shapes,
)


def _num_parameters(shapes):
  return sum(math.prod(shape) for shape in shapes.values())


def _shape(name, num_classes, image_shape=None):
  return ImageModelConfig(
    name=name,
    num_classes=num_classes,
    image_shape=image_shape or IMAGE_CLASSIFIERS[name].image_shape,
  )


def _images(shape, batch=3, seed=0):
  pixels = np.random.RandomState(seed).randint(256, size=(batch, *shape))
  return tf.constant(pixels, tf.uint8)


@pytest.fixture(scope='module')
def resnet_weights():
  return initial_weights(_shape('resnet18', 10), 1)


@pytest.fixture
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: eight take long to draw and trace.

  The first has a plain shortcut, the second projects.
  """
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


class TestEmnistCnn:
  def test_parameter_count_by_hand(self):
    # conv 3*3*1*32 + 32 = 320; conv 3*3*32*64 + 64 = 18,496;
    # 28 - 2 - 2 = 24, pooled 12: 12*12*64 = 9,216 features;
    # dense 9,216*128 + 128 = 1,179,776; dense 128*62 + 62 = 7,998.
    # Together 1,206,590, the number of the paper.
    assert _num_parameters(emnist_cnn_shapes(62)) == 1_206_590

  def test_logits_equal_a_forward_pass_in_numpy(self):
    shape = (9, 8, 2)  # Pooling drops a row: 9 - 4 = 5 gives 2.
    names = emnist_cnn_shapes(5, shape)
    random = np.random.RandomState(0)
    weights = [random.normal(size=s).astype('f') * 0.3 for s in names.values()]
    images = random.normal(size=(3, *shape)).astype('f')
    k1, b1, k2, b2, hidden, hidden_bias, head, head_bias = weights

    def convolve(inputs, kernel, bias):
      height, width = inputs.shape[1] - 2, inputs.shape[2] - 2
      outputs = bias + sum(
        inputs[:, i : i + height, j : j + width] @ kernel[i, j]
        for i, j in itertools.product(range(3), range(3))
      )
      return np.maximum(outputs, 0)

    outputs = convolve(convolve(images, k1, b1), k2, b2)
    assert outputs.shape == (3, 5, 4, 64)
    pooled = np.max(
      [outputs[:, i:4:2, j:4:2] for i in range(2) for j in range(2)], axis=0
    )
    features = np.maximum(pooled.reshape(3, -1) @ hidden + hidden_bias, 0)
    np.testing.assert_allclose(
      emnist_cnn.logits(weights, images),
      features @ head + head_bias,
      rtol=1e-4,
      atol=1e-4,
    )

  def test_kernels_are_glorot_uniform_and_a_function_of_the_seed(self):
    shape = _shape('emnist_cnn', 62)
    weights, again, other = (
      initial_weights(shape, seed) for seed in (3, tf.constant(3), 4)
    )
    for name, first, second, third in zip(
      emnist_cnn_shapes(62), weights, again, other, strict=True
    ):
      assert first.dtype == tf.float32
      np.testing.assert_array_equal(first, second)
      is_bias = name.endswith('/bias')
      assert np.any(first != third) == (not is_bias)
      assert np.any(first != 0) == (not is_bias)
    # conv_2: 9 * 32 in, 9 * 64 out: limit sqrt(6 / 864) = 1 / 12.
    kernel = weights[2].numpy()
    assert 0.999 / 12 < np.abs(kernel).max() <= 1 / 12
    # 18,432 draws of deviation limit / sqrt(3): the mean's is 0.00035.
    assert abs(kernel.mean()) < 5 * 0.00036
    # No two tensors share a stream: of 100 draws the correlation's deviation
    # is 0.1.
    others = weights[4].numpy().ravel()[:100]
    assert abs(np.corrcoef(others, kernel.ravel()[:100])[0, 1]) < 0.5

  def test_dropout_is_a_function_of_its_seed(self):
    weights = initial_weights(_shape('emnist_cnn', 10), 1)
    images = tf.cast(_images((28, 28, 1)), tf.float32) / 255.0

    def run(seed):
      return emnist_cnn.logits(weights, images, dropout_seed=seed).numpy()

    np.testing.assert_array_equal(run(None), run(None))
    np.testing.assert_array_equal(run([1, 2]), run([1, 2]))
    assert np.abs(run([1, 2]) - run([1, 3])).max() > 1e-3
    assert np.abs(run([1, 2]) - run(None)).max() > 1e-3

  def test_both_dropouts_have_their_rates(self):
    # All kernels 1 / fan in and all inputs 1: without dropout every feature,
    # every hidden unit and the logit are 1. 6 x 6 pixels give 64 features: with
    # dropout a hidden unit is their mean, each kept with probability 3/4, of
    # variance (4/3 - 1) / 64 = 0.00521; the logit is the mean of 128 times this
    # number, each kept with probability 1/2, of variance (2 - 1) / 128 =
    # 0.00781. Of the product: 0.00521 + 0.00781 + 0.00004 = 0.01306.
    # Without the first it would be 0.0078, with rates exchanged 0.0183.
    shapes = emnist_cnn_shapes(1, (6, 6, 1)).values()
    weights = [
      tf.fill(s, 1 / math.prod(s[:-1])) if len(s) > 1 else tf.zeros(s)
      for s in shapes
    ]
    images = tf.ones([4_000, 6, 6, 1])
    np.testing.assert_allclose(emnist_cnn.logits(weights, images), 1, rtol=1e-5)
    found = emnist_cnn.logits(weights, images, dropout_seed=[5, 6]).numpy()
    assert abs(found.mean() - 1) < 5 * math.sqrt(0.01306 / 4_000)
    # The variance of 4,000 has a relative deviation of sqrt(2 / 4000) = 2.2 %.
    assert abs(found.var() / 0.01306 - 1) < 0.11

  def test_features_are_before_the_second_dropout(self):
    *weights, head_kernel, head_bias = initial_weights(
      _shape('emnist_cnn', 10), 1
    )
    weights = (*weights, head_kernel, head_bias + 0.5)
    images = tf.cast(_images((28, 28, 1)), tf.float32) / 255.0
    hidden = emnist_cnn.features(weights, images, dropout_seed=[1, 2])
    without = emnist_cnn.features(weights, images)
    assert np.abs(hidden - without).max() > 1e-3  # The first one is applied.
    seed = tf.random.experimental.stateless_fold_in([1, 2], 1)
    dropped = tf.nn.experimental.stateless_dropout(hidden, 0.5, seed)
    np.testing.assert_array_equal(
      emnist_cnn.logits(weights, images, dropout_seed=[1, 2]),
      tf.matmul(dropped, head_kernel) + head_bias + 0.5,
    )

  def test_images_too_small(self):
    with pytest.raises(ValueError, match='at least 6 x 6 pixels, found 5 x 28'):
      emnist_cnn_shapes(10, (5, 28, 1))


class TestResnet:
  def test_parameter_count_by_hand(self):
    # stem 3*3*3*64 + 2*64 = 1,856
    # 64:  4 convolutions 9*64*64 + 128 = 36,992 each: 147,968
    # 128: 9*64*128 + 256 = 73,984; 3 of 9*128*128 + 256 = 147,712 each;
    #      shortcut 64*128 + 256 = 8,448: together 525,568
    # 256: 295,424 + 3 * 590,336 + 33,280 = 2,099,712
    # 512: 1,180,672 + 3 * 2,360,320 + 132,096 = 8,393,728
    # head 512*100 + 100 = 51,300
    assert _num_parameters(resnet_shapes(100)) == 11_220_132
    assert len(resnet_shapes(100)) == 3 * 20 + 2

  def test_kernels_are_he_normal_and_norms_the_identity(self, resnet_weights):
    names = list(resnet_shapes(10))
    named = dict(zip(names, resnet_weights, strict=True))
    for name, weight in named.items():
      if name.endswith('/scale'):
        np.testing.assert_array_equal(weight, 1.0)
      elif name.endswith('/bias'):
        np.testing.assert_array_equal(weight, 0.0)
    kernel = named['stage_4/block_2/conv_2/kernel'].numpy()
    # Fan in 9 * 512 = 4,608; 2,359,296 draws, so 0.05 % is the deviation.
    assert abs(kernel.std() / math.sqrt(2 / 4_608) - 1) < 0.0025
    assert abs(named['head/kernel'].numpy().std() * math.sqrt(512) - 1) < 0.05

  @pytest.mark.usefixtures('two_blocks')
  def test_same_seed_same_weights(self):
    weights = initial_weights(_shape('resnet18', 10), 1)
    again = initial_weights(_shape('resnet18', 10), tf.constant(1))
    other = initial_weights(_shape('resnet18', 10), 2)
    names = resnet_shapes(10)
    for name, *drawn in zip(names, weights, again, other, strict=True):
      first, second, third = (weight.numpy() for weight in drawn)
      np.testing.assert_array_equal(first, second)
      is_kernel = name.endswith('/kernel')
      assert np.any(first != third) == is_kernel

  def test_group_norm_by_hand(self):
    # Two positions, four channels, two groups.
    # group 0: 1, 3, 5, 7: mean 4, variance 5; group 1: 0, 0, 0, 4: 1 and 3.
    inputs = tf.constant([[[[1.0, 3, 0, 0], [5, 7, 0, 4]]]])
    scale, bias = tf.constant([1.0, 2, 1, -1]), tf.constant([0.0, 0, 1, 0])
    five, three = math.sqrt(5), math.sqrt(3)
    expected = [
      [-3 / five, 2 * -1 / five, -1 / three + 1, 1 / three],
      [1 / five, 2 * 3 / five, -1 / three + 1, -3 / three],
    ]
    found = resnet.group_norm(inputs, scale, bias, num_groups=2)
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-5)
    # Another image in the batch changes nothing.
    both = tf.concat([inputs, 9 * inputs + 1], axis=0)
    found = resnet.group_norm(both, scale, bias, num_groups=2)
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-5)

  def test_groups_must_divide_the_channels(self):
    with pytest.raises(ValueError, match='divide the 4 channels, found 3'):
      resnet.group_norm(tf.ones([1, 2, 2, 4]), 1.0, 0.0, num_groups=3)

  def test_shortcuts_are_added(self, resnet_weights):
    # With scale 0 in the second norm of every block a block adds nothing: what
    # is left is the stem, the three projections and the head.
    names = resnet_shapes(10)
    named = {
      name: tf.zeros_like(weight)
      if name.endswith('conv_2/norm/scale')
      else weight
      for name, weight in zip(names, resnet_weights, strict=True)
    }
    images = tf.random.stateless_normal([2, 32, 32, 3], [1, 2])
    outputs = tf.nn.conv2d(images, named['stem/kernel'], 1, 'SAME')
    outputs = tf.nn.relu(resnet.group_norm(outputs, 1.0, 0.0))
    for stage in (2, 3, 4):
      kernel = named[f'stage_{stage}/block_1/shortcut/kernel']
      outputs = tf.nn.conv2d(outputs, kernel, 2, 'SAME')
      outputs = tf.nn.relu(resnet.group_norm(outputs, 1.0, 0.0))
    assert outputs.shape == [2, 4, 4, 512]
    features = tf.reduce_mean(outputs, [1, 2])
    np.testing.assert_allclose(
      resnet.logits(tuple(named.values()), images),
      tf.matmul(features, named['head/kernel']),
      atol=1e-4,
    )


@pytest.mark.usefixtures('two_blocks')
@pytest.mark.parametrize('name', IMAGE_CLASSIFIERS)
def test_every_weight_has_a_gradient_at_any_batch_size(name):
  model = IMAGE_CLASSIFIERS[name]
  weights = initial_weights(_shape(name, 10), 1)

  @tf.function(input_signature=[tf.TensorSpec([None, *model.image_shape])])
  def gradients_of(images):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      logits = model.logits(weights, images, dropout_seed=tf.constant([1, 2]))
      loss = tf.reduce_sum(tf.nn.log_softmax(logits)[:, 0])
    return logits, tape.gradient(loss, weights)

  for batch in (1, 3):
    images = model.normalize(_images(model.image_shape, batch=batch))
    logits, gradients = gradients_of(images)
    assert logits.shape == [batch, 10]
    assert logits.dtype == tf.float32
    for gradient in gradients:
      assert np.isfinite(gradient).all() and np.any(gradient != 0)


@pytest.mark.usefixtures('two_blocks')
@pytest.mark.parametrize(
  ('name', 'width'),
  # The second block of the cut ResNet has 64 channels.
  [
    ('emnist_cnn', 128),
    ('resnet18', 64),
    ('linear', 10),
    ('lenet', 84),
    ('fed_net_cnn', 128),
  ],
)
def test_logits_are_the_head_of_the_features(name, width):
  model, config = IMAGE_CLASSIFIERS[name], _shape(name, 10)
  # Biases begin at 0, with which none would be missed.
  weights = [w + 0.01 for w in initial_weights(config, 1)]
  images = model.normalize(_images(model.image_shape))
  features = model.features(weights, images)
  assert features.shape == [3, width] and features.dtype == tf.float32
  expected = features
  if name != 'linear':
    named = dict(zip(config.weight_shapes(), weights, strict=True))
    expected = tf.matmul(features, named['head/kernel'])
    expected += named.get('head/bias', 0.0)
  np.testing.assert_array_equal(model.logits(weights, images), expected)


class TestCropAndFlip:
  def _windows(self, image, padding):
    """Returns every result that there can be, (row, column, flip) -> image."""
    height, width, _ = image.shape
    padded = np.pad(image, [(padding, padding), (padding, padding), (0, 0)])
    return {
      (row, column, flip): padded[row : row + height, column : column + width][
        :, :: -1 if flip else 1
      ]
      for row in range(2 * padding + 1)
      for column in range(2 * padding + 1)
      for flip in (False, True)
    }

  def _places(self, images, found, padding=2):
    places = []
    for image, result in zip(images.numpy(), found.numpy(), strict=True):
      (place,) = [
        place
        for place, window in self._windows(image, padding).items()
        if np.array_equal(window, result)
      ]
      places.append(place)
    return places

  def test_every_result_is_a_window_of_the_padded_image(self):
    # Distinct pixels, so that each window is recognized.
    images = _images((6, 5, 3), batch=300)
    found = random_crop_and_flip(images, [1, 2])
    assert found.dtype == tf.uint8 and found.shape == images.shape
    places = self._places(images, found)
    rows, columns, flips = zip(*places, strict=True)
    assert set(rows) == set(columns) == set(range(5))
    # 150 of 300 flipped, standard deviation 8.7.
    assert abs(sum(flips) - 150) < 44
    # Rows and columns are drawn apart: all 25 pairs among 300, but for a chance
    # of 25 * (24/25)^300 = 0.0001.
    assert len(set(zip(rows, columns, strict=True))) == 25

  def test_same_seed_same_result(self):
    images = _images((6, 5, 3), batch=30)
    first, again, other = (
      random_crop_and_flip(images, seed) for seed in ([1, 2], [1, 2], [1, 3])
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)

  def test_without_padding_only_flips(self):
    images = _images((6, 5, 1), batch=20)
    found = random_crop_and_flip(images, [1, 2], padding=0)
    flips = {flip for _, _, flip in self._places(images, found, padding=0)}
    assert flips == {False, True}

  def test_in_a_graph_with_any_batch_size(self):
    crop = tf.function(
      random_crop_and_flip,
      input_signature=[
        tf.TensorSpec([None, 6, 5, 3], tf.uint8),
        tf.TensorSpec([2], tf.int32),
      ],
    )
    images = _images((6, 5, 3), batch=4)
    found = crop(images, tf.constant([1, 2]))
    assert len(self._places(images, found)) == 4


class TestTable:
  def test_images_for_the_cnn_are_scaled_to_one(self):
    model = IMAGE_CLASSIFIERS['emnist_cnn']
    images = tf.constant([[[[0]], [[51]], [[255]]]], tf.uint8)
    found = model.normalize(images)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found[0, :, 0, 0], [0, 0.2, 1], rtol=1e-6)
    np.testing.assert_array_equal(model.augment(images, [1, 2]), images)

  def test_images_for_the_resnet_are_standardized_one_by_one(self):
    model = IMAGE_CLASSIFIERS['resnet18']
    # First: mean 30, deviation 10; second: mean 100, deviation 100.
    images = np.array([[20, 40, 20, 40], [0, 200, 200, 0]], np.uint8)
    found = model.normalize(tf.constant(images.reshape(2, 2, 2, 1)))
    np.testing.assert_allclose(
      tf.reshape(found, [2, 4]), [[-1, 1, -1, 1], [-1, 1, 1, -1]], rtol=1e-5
    )

  @pytest.mark.parametrize('name', IMAGE_CLASSIFIERS)
  def test_all_are_called_alike(self, name):
    model = IMAGE_CLASSIFIERS[name]
    images = _images(model.image_shape)
    augmented = model.augment(images, tf.constant([1, 2]))
    assert augmented.shape == images.shape
    assert model.normalize(augmented).dtype == tf.float32

  @pytest.mark.parametrize('name', IMAGE_CLASSIFIERS)
  @pytest.mark.parametrize('shape', [(16, 16, 1), (16, 128, 3), (128, 17, 1)])
  def test_shapes_of_own_images(self, name, shape):
    model = IMAGE_CLASSIFIERS[name]
    config = _shape(name, 2, shape)
    weights = initial_weights(config, 1)
    expected = config.weight_shapes().values()
    assert [tuple(weight.shape) for weight in weights] == list(expected)
    images = tf.constant(_images(shape))
    augmented = model.augment(images, tf.constant([1, 2]))
    logits = model.logits(weights, model.normalize(augmented))
    assert logits.shape == (len(images), 2)
