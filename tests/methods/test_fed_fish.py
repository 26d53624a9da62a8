"""FedFish's settings beside those of other sections, and its cost."""

import planned_configs
import pytest

from tff_fedfish.config_fields import ConfigError


@pytest.mark.parametrize(
  ('settings', 'problem'),
  [
    (
      {'algorithm__fisher_estimator': 'second_moment'},
      "`config.client_work.optimizer` must be 'adamw' with fisher_estimator "
      "'second_moment', found 'sgd', which keeps no second moment",
    ),
    (
      {
        'algorithm__fisher_estimator': 'second_moment',
        'client_work__optimizer': 'adamw',
        'client_work__max_gradient_norm': 1.0,
      },
      '`config.client_work.max_gradient_norm` must be None with '
      "fisher_estimator 'second_moment', as clipped gradients are no Fisher "
      'diagonal, found 1.0',
    ),
    (
      {
        'algorithm__fisher_estimator': 'second_moment',
        'client_work__optimizer': 'adamw',
        'client_work__keeps_optimizer_state': True,
      },
      '`config.client_work.keeps_optimizer_state` must be false with '
      "fisher_estimator 'second_moment', as it would hold gradients of earlier "
      'rounds, found true',
    ),
  ],
)
def test_second_moment_without_one_is_refused(settings, problem):
  with pytest.raises(ConfigError) as caught:
    planned_configs.by_hand(**settings)
  assert problem in str(caught.value)


def test_second_moment_takes_no_pass():
  config = planned_configs.by_hand(
    algorithm__fisher_estimator='second_moment',
    client_work__optimizer='adamw',
  )
  assert config.method.cost(config).pass_after_training == 'none'


def test_images_have_no_logits_of_a_language_model():
  with pytest.raises(ConfigError) as caught:
    planned_configs.shipped(
      'mnist_by_writer',
      algorithm__name='fed_fish',
      algorithm__plain_mean_tensors='logits',
    )
  assert (
    "`config.algorithm.plain_mean_tensors` must be 'none' with corpus "
    "'mnist_by_writer', which trains no language model, found 'logits'"
  ) in str(caught.value)
