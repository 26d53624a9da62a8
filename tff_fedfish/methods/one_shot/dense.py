"""DENSE: distills the clients' models into one, on images from a generator.

Zhang et al. (2022), "DENSE: Data-free one-shot federated learning", algorithm
1, with the constants of the comparison in Jhunjhunwala et al. (2024),
FedFisher.

  letter   name              what
  D(x)     ensemble_logits   sum_i p_i f_i(x), with f_i client i's logits
  f_S(x)   student_logits    the student's
  L_CE                       cross-entropy of softmax(D(x)) to labels drawn
  L_div                      -KL(softmax D(x) || softmax f_S(x)) where both
                             predict different classes, else 0

An outer epoch draws noise and labels for a batch of 256 images, and takes Adam
steps of the generator on L_CE + L_div / 2. The batch that it then makes joins a
pool, over which the student passes once, in a drawn order, with the loss
T^2 KL(softmax D / T || softmax f_S / T), T = 20. The pool, and the decay 0.5 of
Adam's first moment, are from the authors' code; in algorithm 1 the student sees
only the newest batch. Unlike that code, and as published, the generator goes on
from epoch to epoch, the noise is not trained, and images are not augmented. The
publication's third term is 0: no classifier here has batch normalization.
"""

import dataclasses
import math

import numpy as np

from models.model_shapes import num_parameters
from tff_fedfish.fields import number
from tff_fedfish.late import module, tf
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.uploads import Best, SolveResult
from tff_fedfish.methods.settings import image_problems

_image_models = module('models.image_models')

_BATCH_SIZE = 256
_TEMPERATURE = 20.0
_NOISE_WIDTH = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(OneShot):
  """One-shot, images only: the average is trained on the clients' ensemble.

  The images come from a generator that is trained against it.
  """

  title = 'DENSE'
  source = 'Zhang et al. (2022), "DENSE: Data-free one-shot federated learning"'
  hue, hatch = '#AA4499', '..'

  num_outer_epochs: int = number(20, at_least=1)
  """Alternations of generator and student, >= 1."""
  num_generator_steps: int = number(30, at_least=1)
  """Steps of the generator in each, >= 1."""

  def solve(self, uploads, start, context):
    """Distills the ensemble of all clients into a student begun as `start`.

    With a score it is the first best student after an outer epoch, `best_step`,
    from 1; else the last. Measurements, float32: `generator_loss` and
    `distillation_loss` of all steps of the generator and of the student. On a
    CPU, equal arguments give equal results bit for bit.
    """
    seeds = tf.random.experimental.stateless_split([context.seed, 0], 4)
    weights_seed, *epoch_seeds = tf.unstack(seeds)
    student = [tf.Variable(weight) for weight in start]
    train_generator, make_images, train_student = _build_steps(
      context.shape, uploads, student, weights_seed
    )
    pool, generator_losses, distillation_losses = [], [], []
    best = Best(context.score)
    for epoch in range(1, self.num_outer_epochs + 1):
      noise_seed, label_seed, order_seed = (
        tf.random.experimental.stateless_fold_in(seed, epoch)
        for seed in epoch_seeds
      )
      size, num_classes = [_BATCH_SIZE], context.shape.num_classes
      noise = tf.random.stateless_normal([*size, _NOISE_WIDTH], noise_seed)
      labels = tf.random.stateless_uniform(
        size, label_seed, maxval=num_classes, dtype=tf.int32
      )
      for _ in range(self.num_generator_steps):
        generator_losses.append(train_generator(noise, labels))
      pool.append(make_images(noise))
      inputs, logits = (
        tf.concat(parts, axis=0) for parts in zip(*pool, strict=True)
      )
      order = tf.random.experimental.stateless_shuffle(
        tf.range(len(inputs)), order_seed
      )
      for rows in tf.split(order, len(pool)):
        loss = train_student(tf.gather(inputs, rows), tf.gather(logits, rows))
        distillation_losses.append(loss)
      best.visit(epoch, tuple(weight.numpy() for weight in student))
    return SolveResult(
      best.weights,
      best_step=best.step if context.score else None,
      measurements={
        'generator_loss': np.array(generator_losses, np.float32),
        'distillation_loss': np.array(distillation_losses, np.float32),
      },
    )

  def solve_models(self, config, num_clients):
    """Returns the clients' models and the student's, and what images take."""
    shape = config.model_shape()
    rows, columns = _map_sides(shape.image_shape)
    # Of the generator's layers per image, some five copies: 128 channels on the
    # small map, 128 on its double, 64 at full size. Of classifiers two.
    values = 5 * rows * columns * (128 + 4 * 128 + 16 * 64)
    values += 2 * (num_clients + 1) * shape.num_convolved()
    # The pool of images, and those of an epoch in their order.
    pool = 3 * self.num_outer_epochs * math.prod(shape.image_shape)
    return num_clients + 8 + 256 * (values + pool) / num_parameters(shape)

  def problems(self, config):
    return super().problems(config) + image_problems(config)


def _build_steps(shape, uploads, student, generator_seed):
  """Returns the generator's step, its synthesis and the student's step."""
  classifier = _image_models.IMAGE_CLASSIFIERS[shape.name]
  clients = [tuple(map(tf.constant, upload.weights)) for upload in uploads]
  shares = [tf.constant(share, tf.float32) for share in uploads.shares]
  generator = _initial_generator(shape.image_shape, generator_seed)
  adam = tf.keras.optimizers.Adam(1e-3, beta_1=0.5)
  sgd = tf.keras.optimizers.SGD(0.01, momentum=0.9)
  adam.build(generator)
  sgd.build(student)

  @tf.function(autograph=False)
  def make_images(noise):
    images = _generate(generator, noise, shape.image_shape)
    # Stored images are 0 to 255; floats pass through as well.
    inputs = classifier.normalize(255.0 * images)
    logits = tf.add_n(
      share * classifier.logits(weights, inputs)
      for share, weights in zip(shares, clients, strict=True)
    )
    return inputs, logits

  def step(optimizer, weights, compute_loss):
    with tf.GradientTape() as tape:
      loss = compute_loss()
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights, strict=True))
    return loss

  @tf.function(autograph=False)
  def train_generator(noise, labels):
    def compute_loss():
      inputs, ensemble_logits = make_images(noise)
      student_logits = classifier.logits(student, inputs)
      return generator_loss(ensemble_logits, student_logits, labels)

    return step(adam, generator, compute_loss)

  @tf.function(autograph=False)
  def train_student(inputs, ensemble_logits):
    def compute_loss():
      divergences = _divergences(
        ensemble_logits / _TEMPERATURE,
        classifier.logits(student, inputs) / _TEMPERATURE,
      )
      # T^2 keeps gradients as large as at T = 1 (Hinton et al., 2015).
      return _TEMPERATURE**2 * tf.reduce_mean(divergences)

    return step(sgd, student, compute_loss)

  return train_generator, make_images, train_student


def generator_loss(ensemble_logits, student_logits, labels):
  """Returns the mean of L_CE + L_div / 2 over a batch, in nats."""
  cross_entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels, ensemble_logits
  )
  ensemble_class = tf.argmax(ensemble_logits, axis=1)
  differs = ensemble_class != tf.argmax(student_logits, axis=1)
  divergences = _divergences(ensemble_logits, student_logits)
  divergences *= tf.cast(differs, divergences.dtype)
  return tf.reduce_mean(cross_entropies - 0.5 * divergences)


def _divergences(first_logits, second_logits):
  """Returns KL(softmax(first) || softmax(second)) of each row, in nats."""
  first = tf.nn.log_softmax(first_logits)
  second = tf.nn.log_softmax(second_logits)
  return tf.reduce_sum(tf.exp(first) * (first - second), axis=1)


def _initial_generator(image_shape, seed):
  """Draws the weights of a generator after DCGAN (Radford et al., 2016).

  A dense layer makes a small map of channels, which is enlarged twice. Kernels
  are normal with deviation 0.02; norms begin as the identity, biases at 0.
  """

  def kernel(index, *shape):
    place = tf.random.experimental.stateless_fold_in(seed, index)
    return tf.random.stateless_normal(shape, place, stddev=0.02)

  rows, columns = _map_sides(image_shape)
  width, channels = rows * columns * 128, image_shape[2]
  norms = [(tf.ones([n]), tf.zeros([n])) for n in (128, 128, 64)]
  weights = (
    *(kernel(0, _NOISE_WIDTH, width), tf.zeros([width]), *norms[0]),
    *(kernel(4, 3, 3, 128, 128), *norms[1]),
    *(kernel(7, 3, 3, 128, 64), *norms[2]),
    *(kernel(10, 3, 3, 64, channels), tf.zeros([channels])),
  )
  return [tf.Variable(weight) for weight in weights]


def _generate(weights, noise, image_shape):
  """Makes images in [0, 1] from noise [batch, 256], two rows or more."""

  def normalized(inputs, scale, bias):
    # Batch normalization in steps whose gradients are sums of two terms.
    # `tf.nn.moments` makes one of three, which TensorFlow adds in an order that
    # depends on its threads.
    centered = inputs - tf.reduce_mean(inputs, axis=[0, 1, 2])
    variance = tf.reduce_mean(tf.square(centered), axis=[0, 1, 2])
    return centered * (tf.math.rsqrt(variance + 1e-5) * scale) + bias

  kernel, bias, *norm, conv_1, scale_1, bias_1, conv_2, scale_2, bias_2 = (
    weights[:-2]
  )
  height, width, _ = image_shape
  outputs = tf.matmul(noise, kernel) + bias
  # Sides rounded up: what they are too large by is cropped at the end.
  outputs = tf.reshape(outputs, [-1, *_map_sides(image_shape), 128])
  outputs = normalized(outputs, *norm)
  for kernel, *norm in (conv_1, scale_1, bias_1), (conv_2, scale_2, bias_2):
    outputs = normalized(enlarge_and_convolve(outputs, kernel), *norm)
    outputs = tf.nn.leaky_relu(outputs, 0.2)
  kernel, bias = weights[-2:]
  outputs = tf.nn.conv2d(outputs, kernel, strides=1, padding='SAME') + bias
  return tf.sigmoid(outputs[:, :height, :width])


def enlarge_and_convolve(inputs, kernel):
  """Repeats every row and column, and convolves with zeros around.

  Both are done at once by a transposed convolution with a 4x4 kernel, in 4/9 of
  the products: an input counts wherever one of its four copies does.
  """
  batch, (_, rows, columns, _) = tf.shape(inputs)[0], inputs.shape
  # Transposed convolutions take them mirrored, [4, 4, out, in].
  mirrored = tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])
  summed = tf.add_n(
    tf.pad(mirrored, [[down, 1 - down], [right, 1 - right], [0, 0], [0, 0]])
    for down in (0, 1)
    for right in (0, 1)
  )
  shape = [batch, 2 * rows, 2 * columns, kernel.shape[3]]
  return tf.nn.conv2d_transpose(inputs, summed, shape, strides=2)


def _map_sides(image_shape):
  return [-(-side // 4) for side in image_shape[:2]]
