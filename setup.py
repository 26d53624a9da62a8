"""Package metadata; `make .venv` installs it without its dependencies.

What is declared below is what the code imports, each at the version that it was
tested with. No resolver accepts the whole as declared: dataset-grouper 0.3.0
asks for tensorflow~=2.12.0 and tensorflow-federated 0.87.0 for a jaxlib that is
no longer served. requirements/requirements.lock is the set that works.
"""

import pathlib
import re

import setuptools

_ROOT = pathlib.Path(__file__).resolve().parent


def _version() -> str:
  # As text: importing the package would need what is not yet installed.
  text = (_ROOT / 'tff_fedfish' / 'version.py').read_text('utf-8')
  return re.search(r"^__version__ = '([^']+)'$", text, re.MULTILINE)[1]


def _long_description() -> str:
  readme = _ROOT / 'README.md'
  return readme.read_text('utf-8') if readme.exists() else ''


setuptools.setup(
  name='tff-fedfish',
  version=_version(),
  description='Federated language-model pretraining with function-space '
  'aggregation (FedFish) on TensorFlow Federated.',
  long_description=_long_description(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE'],
  packages=setuptools.find_packages(
    include=[
      f'{package}{below}'
      for package in ('tff_fedfish', 'pipelines', 'models', 'configs')
      for below in ('', '.*')
    ]
  ),
  package_data={
    'tff_fedfish': ['corpora/**', '*/templates/*'],
  },
  python_requires='>=3.11,<3.12',
  install_requires=[
    'ada-url',
    'apache-beam==2.77.0',
    'dataset-grouper==0.3.0',
    'dp-accounting',
    'google-crc32c',
    'jinja2',
    'matplotlib',
    'ml-collections',
    'pandas',
    'pillow',
    'psutil',
    'pyarrow',
    'ray==2.52.1',
    'rich',
    'scipy',
    'safetensors',
    'tensorflow-federated==0.87.0',
    'tensorflow-text==2.14.0',
    'tensorflow==2.14.1',
    'tldextract',
    'tokenizers',
    'zlib-ng',
    'zstandard',
  ],
  entry_points={
    'console_scripts': ['fedfish = tff_fedfish.cli.main:main'],
  },
  classifiers=[
    'Development Status :: 3 - Alpha',
    'Intended Audience :: Science/Research',
    'License :: OSI Approved :: Apache Software License',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3 :: Only',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
  ],
)
