"""Models as directories that Hugging Face's `transformers` reads and writes."""
