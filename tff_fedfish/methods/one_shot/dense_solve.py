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
pool, over which the student passes once, in a drawn order. As published, the
generator goes on from epoch to epoch, and the noise is not trained. Two things
are from the authors' code: the pool (in algorithm 1 the student sees only the
newest batch), and the decay 0.5 of Adam's first moment. That code also draws
the generator again in every epoch, trains the noise, keeps the batch of the
lowest loss, and mirrors and shifts images; none of that is done here.

The third term of the publication compares statistics of the clients' batch
normalization. It is 0, as no model here has any. Nothing is dropped out.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS
from tff_fedfish.errors import require
from tff_fedfish.methods.one_shot import image_generator
from tff_fedfish.methods.one_shot.solving import (
  SolveContext,
  SolveResult,
  Uploads,
)

BATCH_SIZE = 256
"""Images that are made at once, and of a step of the student."""
ADVERSARIAL_WEIGHT = 0.5
TEMPERATURE = 20.0

_Pool = Sequence[tuple[tf.Tensor, tf.Tensor]]


def solve(
  uploads: Uploads, start: Sequence[np.ndarray], context: SolveContext
) -> SolveResult:
  """Distills the ensemble of all clients into a student that begins as `start`.

  Memory holds the models of all clients and four more: the student, its
  velocity, its gradient and the best student so far.

  Args:
    uploads: The clients' models, at least one.
    start: The weighted mean of their weights.
    context: Its settings are `num_outer_epochs` and `num_generator_steps`.

  Returns:
    The student after the outer epoch with the highest score, the first of
    equal ones, and `best_step`, the epoch's number from 1; without a score the
    last student, and None. Measurements, float32: `generator_loss` of all steps
    of the generator, `distillation_loss` of all steps of the student. On a CPU,
    equal arguments give equal results bit for bit.

  Raises:
    ValueError: If the model is no image model.
  """
  settings, shape = context.settings, context.shape
  is_of_images = isinstance(shape, ImageModelConfig)
  require(is_of_images, 'context.shape', 'of images', shape)
  seeds = tf.random.experimental.stateless_split([context.seed, 0], 4)
  weights_seed, *epoch_seeds = tf.unstack(seeds)
  student = [tf.Variable(weight) for weight in start]
  train_generator, make_images, train_student = _build_steps(
    shape, uploads, student, weights_seed
  )
  pool, generator_losses, distillation_losses = [], [], []
  best, best_step, best_score = None, None, -1.0
  for epoch in range(1, settings.num_outer_epochs + 1):
    noise_seed, label_seed, order_seed = (
      tf.random.experimental.stateless_fold_in(seed, epoch)
      for seed in epoch_seeds
    )
    noise = tf.random.stateless_normal(
      [BATCH_SIZE, image_generator.NOISE_WIDTH], noise_seed
    )
    labels = tf.random.stateless_uniform(
      [BATCH_SIZE], label_seed, maxval=shape.num_classes, dtype=tf.int32
    )
    for _ in range(settings.num_generator_steps):
      generator_losses.append(train_generator(noise, labels))
    pool.append(make_images(noise))
    for inputs, ensemble_logits in _batches(pool, order_seed):
      distillation_losses.append(train_student(inputs, ensemble_logits))
    if context.score is not None:
      weights = tuple(weight.numpy() for weight in student)
      if (score := context.score(weights)) > best_score:
        best, best_step, best_score = weights, epoch, score
  return SolveResult(
    weights=best or tuple(weight.numpy() for weight in student),
    best_step=best_step,
    measurements={
      'generator_loss': np.array(generator_losses, np.float32),
      'distillation_loss': np.array(distillation_losses, np.float32),
    },
  )


def generator_loss(
  ensemble_logits: tf.Tensor, student_logits: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
  """Returns the mean of L_CE + L_div / 2 over a batch, a scalar in nats.

  Args:
    ensemble_logits: Float32 [batch, num_classes].
    student_logits: Float32 [batch, num_classes].
    labels: Int32 [batch].
  """
  cross_entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels, ensemble_logits
  )
  ensemble_class = tf.argmax(ensemble_logits, axis=1)
  differs = ensemble_class != tf.argmax(student_logits, axis=1)
  divergences = _divergences(ensemble_logits, student_logits)
  divergences *= tf.cast(differs, divergences.dtype)
  return tf.reduce_mean(cross_entropies - ADVERSARIAL_WEIGHT * divergences)


def distillation_loss(
  ensemble_logits: tf.Tensor, student_logits: tf.Tensor
) -> tf.Tensor:
  """Returns the mean of T^2 KL(softmax(D / T) || softmax(f_S / T)), T = 20.

  T^2 keeps gradients as large as at T = 1 (Hinton et al., 2015).

  Args:
    ensemble_logits: Float32 [batch, num_classes].
    student_logits: Float32 [batch, num_classes].
  """
  divergences = _divergences(
    ensemble_logits / TEMPERATURE, student_logits / TEMPERATURE
  )
  return TEMPERATURE**2 * tf.reduce_mean(divergences)


def student_optimizer() -> tf.keras.optimizers.Optimizer:
  """Returns the optimizer with which the student is trained."""
  return tf.keras.optimizers.SGD(0.01, momentum=0.9)


def distillation_step(
  logits: Callable[[Sequence[tf.Variable], tf.Tensor], tf.Tensor],
  student: Sequence[tf.Variable],
  optimizer: tf.keras.optimizers.Optimizer,
  inputs: tf.Tensor,
  ensemble_logits: tf.Tensor,
) -> tf.Tensor:
  """Updates the student on one batch; returns the loss before.

  Args:
    logits: (weights, inputs) -> float32 [batch, num_classes].
    student: The weights.
    optimizer: As `student_optimizer` returns it, built for them.
    inputs: The batch, as `logits` takes it.
    ensemble_logits: Float32 [batch, num_classes] of the batch.
  """
  with tf.GradientTape() as tape:
    loss = distillation_loss(ensemble_logits, logits(student, inputs))
  gradients = tape.gradient(loss, student)
  optimizer.apply_gradients(zip(gradients, student, strict=True))
  return loss


def _build_steps(shape, uploads, student, generator_seed):
  """Returns the generator's step, its synthesis and the student's step."""
  classifier = IMAGE_CLASSIFIERS[shape.name]
  clients = [tuple(map(tf.constant, upload.weights)) for upload in uploads]
  shares = [tf.constant(share, tf.float32) for share in uploads.shares]
  generator = [
    tf.Variable(weight)
    for weight in image_generator.initial_weights(
      shape.image_shape, generator_seed
    )
  ]
  adam = tf.keras.optimizers.Adam(1e-3, beta_1=0.5)
  sgd = student_optimizer()
  adam.build(generator)
  sgd.build(student)

  @tf.function(autograph=False)
  def make_images(noise):
    images = image_generator.generate(generator, noise, shape.image_shape)
    # Stored images are 0 to 255; floats pass through as well.
    inputs = classifier.normalize(255.0 * images)
    logits = tf.add_n(
      share * classifier.logits(weights, inputs)
      for share, weights in zip(shares, clients, strict=True)
    )
    return inputs, logits

  @tf.function(autograph=False)
  def train_generator(noise, labels):
    with tf.GradientTape() as tape:
      inputs, ensemble_logits = make_images(noise)
      student_logits = classifier.logits(student, inputs)
      loss = generator_loss(ensemble_logits, student_logits, labels)
    gradients = tape.gradient(loss, generator)
    adam.apply_gradients(zip(gradients, generator, strict=True))
    return loss

  @tf.function(autograph=False)
  def train_student(inputs, ensemble_logits):
    return distillation_step(
      classifier.logits, student, sgd, inputs, ensemble_logits
    )

  return train_generator, make_images, train_student


def _divergences(first_logits, second_logits):
  """Returns KL(softmax(first) || softmax(second)) of each row, in nats."""
  first = tf.nn.log_softmax(first_logits)
  second = tf.nn.log_softmax(second_logits)
  return tf.reduce_sum(tf.exp(first) * (first - second), axis=1)


def _batches(pool: _Pool, seed: tf.Tensor) -> Iterator[tuple[tf.Tensor, ...]]:
  """Yields inputs and logits of the whole pool, in a drawn order."""
  inputs, logits = (
    tf.concat(parts, axis=0) for parts in zip(*pool, strict=True)
  )
  order = tf.random.experimental.stateless_shuffle(
    tf.range(len(pool) * BATCH_SIZE), seed
  )
  for rows in tf.split(order, len(pool)):
    yield tf.gather(inputs, rows), tf.gather(logits, rows)
