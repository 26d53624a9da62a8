"""Clusters of images: from labels, from pixels and kept, from a file."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tff_fedfish.data.images import image_clusters
from tff_fedfish.data.images.loading import load_image_corpus
from tff_fedfish.data.images.partitions import Partition
from tff_fedfish.errors import UserError


@pytest.fixture(name='cache', autouse=True)
def _cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  return tmp_path / 'cache' / 'fedfish' / 'image_clusters'


@pytest.fixture(name='images', scope='module')
def _images():
  """30 dark, 20 grey and 10 bright images of noise, mixed."""
  random = np.random.RandomState(1)
  images = random.randint(30, size=(60, 4, 3, 1))
  images[20:40] += 100
  images[50:] += 200
  return images.astype(np.uint8)


_LEVELS = [0] * 20 + [1] * 20 + [0] * 10 + [2] * 10


def _assign(source, num_clusters, images=None, labels=None, num_classes=4):
  if images is None:
    images = np.zeros((4, 2, 2, 1), np.uint8)
  if labels is None:
    labels = np.arange(len(images), dtype=np.int32) % num_classes
  return image_clusters.assign(
    source,
    num_clusters,
    images=images,
    labels=labels,
    num_classes=num_classes,
    seed=5,
  )


class TestLabels:
  def test_are_the_clusters(self):
    assert _assign('labels', None).tolist() == [0, 1, 2, 3]

  def test_neighbours_are_merged(self):
    # 10 classes in 4: class * 4 // 10.
    labels = np.arange(10, dtype=np.int32)
    found = _assign('labels', 4, labels=labels, num_classes=10)
    assert found.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    # No overflow of int32: 2 * 2,000,000,000 // 3.
    found = _assign(
      'labels', 3, labels=np.array([2], np.int32), num_classes=2**31
    )
    assert found.tolist() == [0]

  def test_more_than_classes(self):
    with pytest.raises(
      UserError,
      match='^`partition.num_clusters` must not exceed the 4 classes, found 5. '
      "Lower it, or set `partition.clusters` to 'pixels'.$",
    ):
      _assign('labels', 5)


class TestPixels:
  def test_are_separated(self, images):
    found = _assign('pixels', 3, images)
    assert found.dtype == np.int64
    pairs = set(zip(found.tolist(), _LEVELS, strict=True))
    assert len(pairs) == 3
    assert {cluster for cluster, _ in pairs} == {0, 1, 2}

  def test_depends_on_seed_and_images(self, images, cache):
    for seed, of in ((5, images), (6, images), (5, images[:59])):
      image_clusters.load_or_cluster(of, 3, seed=seed)
    image_clusters.load_or_cluster(images, 2, seed=5)
    assert len(list(cache.iterdir())) == 4

  def test_second_time_is_read(self, images, cache, monkeypatch):
    first = image_clusters.load_or_cluster(images, 3, seed=5)
    (path,) = cache.iterdir()
    assert path.stat().st_size == 32 + 4 * 60
    monkeypatch.setattr(image_clusters, 'cluster_pixels', None)
    again = image_clusters.load_or_cluster(images, 3, seed=5)
    np.testing.assert_array_equal(first, again)
    assert again.dtype == np.int64

  @pytest.mark.parametrize(
    'damage',
    [
      lambda data: b'',
      lambda data: data[:-4],
      lambda data: data[:40] + b'\7' + data[41:],
      # Whole, but of other images.
      lambda data: image_clusters.hashlib.sha256(b'1234').digest() + b'1234',
    ],
  )
  def test_damage_is_repaired(self, images, cache, damage):
    first = image_clusters.load_or_cluster(images, 3, seed=5)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    again = image_clusters.load_or_cluster(images, 3, seed=5)
    np.testing.assert_array_equal(first, again)
    assert path.read_bytes() == whole

  def test_a_cache_that_cannot_be_written(self, images, tmp_path, monkeypatch):
    first = image_clusters.load_or_cluster(images, 3, seed=5)
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    again = image_clusters.load_or_cluster(images, 3, seed=5)
    np.testing.assert_array_equal(first, again)

  def test_more_clusters_than_images(self):
    with pytest.raises(
      UserError,
      match='^`partition.num_clusters` is 5, but the corpus has 4 images. Low',
    ):
      _assign('pixels', 5)

  @pytest.mark.filterwarnings('error')
  def test_more_clusters_than_different_images(self, images):
    assert _assign('pixels', 1, images[[0, 0]]).tolist() == [0, 0]
    same = np.repeat(images[[0, 50]], 3, axis=0)
    with pytest.raises(
      UserError,
      match='^`partition.num_clusters` is 3, but k-means finds only 2. Lower',
    ):
      _assign('pixels', 3, same)

  def test_do_not_depend_on_the_number_of_threads(self, tmp_path):
    # Noise without clusters: k-means ends where rounding leads it.
    code = (
      'import hashlib, numpy as np\n'
      'from tff_fedfish.data.images import image_clusters\n'
      'r = np.random.RandomState(1)\n'
      'images = r.randint(256, size=(8000, 12, 12, 1)).astype(np.uint8)\n'
      'found = image_clusters.cluster_pixels(images, 8, seed=1)\n'
      'print(hashlib.sha256(found).hexdigest())\n'
    )
    found = {
      subprocess.run(
        [sys.executable, '-c', code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ
        | dict(OMP_NUM_THREADS=number, OPENBLAS_NUM_THREADS=number),
      ).stdout
      for number in ('1', '2')
    }
    assert len(found) == 1


class TestFile:
  def _read(self, tmp_path, text, num_images=3):
    path = tmp_path / 'clusters.csv'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return image_clusters.read_clusters(str(path), num_images)

  @pytest.mark.parametrize(
    'text',
    [
      'image,cluster\n2,1\n0,2\n1,2\n',
      # As a spreadsheet writes it.
      b'\xef\xbb\xbfimage,cluster\r\n0,2\r\n1,2\r\n2,1',
    ],
  )
  def test_by_hand(self, tmp_path, text):
    assert self._read(tmp_path, text).tolist() == [2, 2, 1]

  @pytest.mark.parametrize(
    ('text', 'words'),
    [
      ('', 'lacks 3 of them, such as the image 0'),
      ('image,cluster\n0,1\n1,1\n', 'lacks 1 of them, such as the image 2'),
      ('0,1\n1,1\n2,1\n', "begins with '0,1'"),
      ('image,cluster\n0,1.0\n', "has '0,1.0' in line 2"),
      ('image,cluster\n0,-1\n', "has '0,-1' in line 2"),
      ('image,cluster\n0,1,2\n', "has '0,1,2' in line 2"),
      ('image,cluster\n0,1\n\n', "has '' in line 3"),
      ('image,cluster\n0,\u0661\n', "has '0,\u0661' in line 2"),
      ('image,cluster\n3,0\n', 'has the image 3 in line 2, above 2'),
      ('image,cluster\n0,3\n', 'has the cluster 3 in line 2, above 2'),
      ('image,cluster\n0,1\n0,1\n', 'has the image 0 again in line 3'),
      (b'image,cluster\n0,\xff\n', "'utf-8' codec can't decode byte 0xff"),
      ('image,cluster\n0,"1\n', 'unexpected end of data'),
    ],
  )
  def test_damage(self, tmp_path, text, words):
    with pytest.raises(UserError) as error:
      self._read(tmp_path, text)
    message = str(error.value)
    assert message.startswith(
      "`partition.clusters` must be 'labels' or 'pixels', or a CSV file with "
      'the columns image,cluster and a line for each of the 3 images, but '
    )
    assert f"clusters.csv' {words}" in message
    assert message.endswith('. Correct the file, or name another one.')
    assert '\n' not in message

  def test_no_such_file(self):
    with pytest.raises(
      UserError,
      match="but 'pixel' cannot be read .No such file or directory.. Correct",
    ):
      _assign('pixel', None)


class TestClients:
  # 12 and 6 images of classes 0 and 1 in training, 4 and 4 in testing.
  _CLASSES = ([0] * 12 + [1] * 6, [0, 1] * 4)

  @pytest.fixture
  def directory(self, tmp_path, write_mnist):
    write_mnist(tmp_path, *self._CLASSES)
    return tmp_path

  def _open(self, directory, held_out='matching', num_clients=4, **settings):
    partition = Partition(
      scheme='latent_distributions', num_clients=num_clients, seed=1, **settings
    )
    return load_image_corpus(
      'mnist', directory, partition=partition, held_out=held_out
    )

  def _write(self, directory, clusters):
    path = directory / 'clusters.csv'
    lines = [f'{i},{cluster}\n' for i, cluster in enumerate(clusters)]
    path.write_text('image,cluster\n' + ''.join(lines))
    return str(path)

  def test_of_a_file(self, directory):
    # Whatever the classes: even images 3, odd ones 7, and 8 and 12 of a cluster
    # that is only tested.
    clusters = [3, 7] * 9 + [3, 7, 7, 7, 7, 3, 3, 8]
    path = self._write(directory, clusters)
    clients = self._open(directory, num_clients=3, clusters=path)
    assert clients.clusters == {
      b'client-0000': 3,
      b'client-0001': 7,
      b'client-0002': 3,
      b'test-0000': 3,
      b'test-0001': 7,
      b'test-0002': 3,
    }
    for client_id, rows in clients.client_rows.items():
      assert {clusters[row] for row in rows} == {clients.clusters[client_id]}
    # 9 / 2, 9, and of 3 and 4 test images 3 / 2 by 5 : 4, and 4.
    sizes = [len(rows) for rows in clients.client_rows.values()]
    assert sizes == [5, 9, 4, 1, 4, 2]
    assert clients.twins == {
      b'client-000%d' % i: b'test-000%d' % i for i in range(3)
    }

  def test_parts_of_a_cluster_are_equal(self, directory):
    path = self._write(directory, [0] * 26)
    clients = self._open(directory, clusters=path)
    sizes = [len(rows) for rows in clients.client_rows.values()]
    assert sizes[:4] == [5, 5, 4, 4]
    # 8 by 5 : 5 : 4 : 4 of 18.
    assert sizes[4:] == [2, 2, 2, 2]

  def test_classes_are_the_default(self, directory):
    found = self._open(directory)
    named = self._open(directory, clusters='labels')
    assert found.fingerprint == named.fingerprint
    assert found.clusters[b'client-0003'] == found.clusters[b'test-0003'] == 1
    merged = self._open(directory, num_clusters=1)
    assert set(merged.clusters.values()) == {0}
    assert merged.fingerprint != found.fingerprint

  def test_the_fingerprint_notices_other_rows_of_the_same_labels(
    self, directory
  ):
    # Images 0 and 1 change places; both are of class 0.
    clusters = [0, 1, *[0, 1] * 8, *[0, 1] * 4]
    first = self._open(directory, clusters=self._write(directory, clusters))
    clusters[:2] = 1, 0
    other = self._open(directory, clusters=self._write(directory, clusters))
    assert first.fingerprint != other.fingerprint
    again = self._open(directory, clusters=self._write(directory, clusters))
    assert other.fingerprint == again.fingerprint

  def test_a_whole_test_split_is_of_no_cluster(self, directory):
    clients = self._open(directory, held_out='whole')
    assert b'test' in clients.client_rows and b'test' not in clients.clusters
    assert clients.twins is None

  def test_other_schemes_have_no_clusters(self, directory):
    partition = Partition(
      scheme='per_client_sampling', num_clients=2, seed=1, alpha=1.0
    )
    clients = load_image_corpus('mnist', directory, partition=partition)
    assert clients.clusters is None

  def test_pixels(self, directory):
    clients = self._open(directory, clusters='pixels', num_clusters=2)
    found = image_clusters.cluster_pixels(clients.images, 2, seed=1)
    for client_id, rows in clients.client_rows.items():
      assert set(found[rows]) == {clients.clusters[client_id]}


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      dict(clusters='pixels'),
      "^`partition.num_clusters` is required by the clusters 'pixels', but it "
      'is not given.$',
    ),
    (
      dict(clusters='a.csv', num_clusters=3),
      '^`partition.num_clusters` is not read with the clusters of a file, here '
      "'a.csv', but it is 3: leave it out.$",
    ),
    (
      dict(scheme='per_client_sampling', alpha=1.0, clusters='labels'),
      "^`partition.clusters` is not read by the scheme 'per_client_sampling', ",
    ),
  ],
)
def test_settings_that_do_not_fit(settings, words):
  settings = dict(scheme='latent_distributions') | settings
  with pytest.raises(UserError, match=words):
    Partition(num_clients=2, seed=1, **settings)


def test_parameters():
  values = dict(scheme='latent_distributions', num_clients=2, seed=1)
  assert Partition(**values).parameters() == {
    'num_clients': 2,
    'clusters': 'labels',
  }
  assert Partition(**values, num_clusters=2).parameters() == {
    'num_clients': 2,
    'clusters': 'labels',
    'num_clusters': 2,
  }


def test_checks_do_not_import_scikit_learn():
  code = (
    'import sys\n'
    'import tff_fedfish.config.schema\n'
    'from tff_fedfish.data.images.loading import Partition\n'
    "Partition(scheme='latent_distributions', num_clients=2, seed=1, "
    "clusters='pixels', num_clusters=2)\n"
    "print('sklearn' in sys.modules)"
  )
  found = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert found.stdout == 'False\n'


def test_real_fashion_mnist(shared_data, tmp_path):
  # Its test split on both sides: 20,000 images.
  for name in ('images-idx3-ubyte.gz', 'labels-idx1-ubyte.gz'):
    path = (shared_data('fashion_mnist') / f't10k-{name}').resolve()
    for side in ('train', 't10k'):
      (tmp_path / f'{side}-{name}').symlink_to(path)
  partition = Partition(
    scheme='latent_distributions',
    num_clients=15,
    seed=5,
    clusters='pixels',
    num_clusters=5,
  )
  clients = load_image_corpus(
    'fashion_mnist', tmp_path, partition=partition, held_out='matching'
  )
  sizes = {i: len(rows) for i, rows in clients.client_rows.items()}
  assert sum(sizes.values()) == 20_000
  numbers = [clients.clusters[b'client-%04d' % i] for i in range(15)]
  # Evenly over the clusters.
  assert numbers == [0, 1, 2, 3, 4] * 3
  for client_id, twin in clients.twins.items():
    assert clients.clusters[client_id] == clients.clusters[twin]
    assert abs(sizes[twin] - sizes[client_id]) <= 1
  for cluster in range(5):
    of = [sizes[b'client-%04d' % i] for i in range(cluster, 15, 5)]
    assert max(of) - min(of) <= 1
