"""One round of FedFish by hand: five presidents, one small language model.

  python docs/examples/fed_fish_by_hand.py

Clients train on State of the Union addresses. Each sends its model delta and
the diagonal of its Fisher information; the server moves every weight by the
mean of the deltas, weighted by the Fishers. The same round by `build_fed_fish`
gives the same weights, and three more lower the loss.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", algorithms 1 and 2.
"""

import collections
import gzip
import json

import numpy as np
import tensorflow_federated as tff

import tff_fedfish
from models.transformer_config import TransformerConfig
from tff_fedfish import corpora
from tff_fedfish.data import sequences
from tff_fedfish.data.tokenizers import load_tokenizer

NUM_CLIENTS = 5
SEQUENCE_LENGTH = 32
BATCH_SIZE = 4


def client_datasets():
  """Returns {president: batches of token sequences}."""
  texts = collections.defaultdict(list)
  path = corpora.sotu_by_president() / 'sotu.json.gz'
  with gzip.open(path, 'rt', encoding='utf-8') as lines:
    for line in map(json.loads, lines):
      texts[line['author']].append(line['text'])
  tokenizer = load_tokenizer(corpora.demo_vocabulary())
  datasets = {}
  for president in sorted(texts)[:NUM_CLIENTS]:
    rows = sequences.build_sequences(
      tokenizer.encode_batch(texts[president][:2]),
      sequence_length=SEQUENCE_LENGTH,
      end_of_text_id=tokenizer.end_of_text_id,
      padding_id=tokenizer.padding_id,
    )
    rows = sequences.take(rows, 16)
    datasets[president] = sequences.to_dataset(rows, BATCH_SIZE)
  return datasets


def build_process():
  """Returns FedFish for a model of two layers, with plain SGD everywhere."""
  shape = TransformerConfig(
    num_layers=2,
    width=32,
    num_heads=2,
    vocabulary_size=2048,
    sequence_length=SEQUENCE_LENGTH,
  )
  return tff_fedfish.build_fed_fish(
    tff_fedfish.build_language_model(shape, model_seed=1),
    client_optimizer=tff.learning.optimizers.build_sgdm(0.5),
    # With rate 1 the server takes the pseudo-gradient itself as its step.
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    num_local_epochs=2,
    relative_floor=0.0,
  )


def round_by_hand(start, clients):
  """Returns theta - sum(w F (theta - theta_i)) / sum(w F), tensor by tensor."""
  weights = []
  for j, theta in enumerate(start):
    numerator = denominator = 0.0
    for client in clients:
      fisher = np.asarray(client['update'].a[j], np.float64)
      mass = float(client['client_weight']) * fisher
      numerator += mass * (theta - client['trainable'][j])
      denominator += mass
    # No client knows a weight whose Fisher is 0 for all: it stays.
    known = denominator > 0
    step = np.where(known, numerator / np.where(known, denominator, 1.0), 0.0)
    weights.append(theta - step)
  return weights


def main():
  """Prints what the clients send, the round both ways, and three more."""
  tff_fedfish.set_in_process_context()
  datasets = client_datasets()
  process = build_process()
  state = process.initialize()
  start = [np.asarray(w) for w in process.get_model_weights(state).trainable]
  clients = process.trained_models(state, list(datasets.values()))
  for president, client in zip(datasets, clients, strict=True):
    trace = sum(np.sum(f) for f in client['update'].a)
    num_sequences = client['client_weight']
    print(f'{president}: {num_sequences:.0f} sequences, trace {trace:.3g}')
  expected = round_by_hand(start, clients)
  for round_num in range(1, 5):
    output = process.next(state, list(datasets.values()))
    state = output.state
    if round_num == 1:
      weights = process.get_model_weights(state).trainable
      difference = max(
        np.abs(w - e).max() for w, e in zip(weights, expected, strict=True)
      )
      print(f'largest difference from the round by hand: {difference:.1e}')
    loss = output.metrics['client_work']['train']['loss']
    print(f'round {round_num}: training loss {loss:.4f} nats per token')


if __name__ == '__main__':
  main()
