"""LeNet and FedFisher's CNN, as pure functions of explicit weights.

The networks of Jhunjhunwala et al. (2024), FedFisher, section 5.1, after LeCun
et al. (1998): two valid 5x5 convolutions, each with a ReLU and 2x2 max pooling,
two hidden layers with ReLUs, and the head. Nothing has a bias, as in the
authors' code. Both are the same functions and differ by the widths of their
layers: `lenet` is for Fashion-MNIST, `fed_net_cnn` for colored images.

Weights are a flat tuple in the order of `image_model_config.lenet_shapes` or
`fed_net_cnn_shapes`.
"""

from collections.abc import Sequence

import tensorflow as tf

from models.layers import Tap, tapped


def logits(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
  tap: Tap | None = None,
) -> tf.Tensor:
  """Returns the logits of a batch, float32 [batch, num_classes].

  Args:
    weights: Float32, in the order of `lenet_shapes` or `fed_net_cnn_shapes`.
    images: Float32 [batch, height, width, channels], in [0, 1].
    dropout_seed: Not used, as there is no dropout.
    tap: See `models.layers`; None: there is none.
  """
  *_, head_kernel = weights
  hidden = features(weights, images, dropout_seed=dropout_seed, tap=tap)
  return tapped(tap, 'head', hidden, tf.matmul(hidden, head_kernel))


def features(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
  tap: Tap | None = None,
) -> tf.Tensor:
  """Returns the second hidden layer, float32 [batch, width]; see `logits`."""
  del dropout_seed
  *convolutions, hidden_1, hidden_2, _ = weights
  outputs = images
  for layer_num, kernel in enumerate(convolutions, start=1):
    convolved = tf.nn.conv2d(outputs, kernel, strides=1, padding='VALID')
    convolved = tapped(tap, f'conv_{layer_num}', outputs, convolved)
    outputs = tf.nn.max_pool2d(
      tf.nn.relu(convolved), ksize=2, strides=2, padding='VALID'
    )
  # [batch, rows, columns, channels] -> [batch, features]
  outputs = tf.reshape(outputs, [-1, hidden_1.shape[0]])
  for layer_num, kernel in enumerate((hidden_1, hidden_2), start=1):
    hidden = tf.matmul(outputs, kernel)
    outputs = tf.nn.relu(tapped(tap, f'hidden_{layer_num}', outputs, hidden))
  return outputs
