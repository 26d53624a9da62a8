"""The version, in one place and importable without TensorFlow."""

__version__ = '0.1.0'
