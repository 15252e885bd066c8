"""Hugging Face configurations to `ModelSpec`, one file per group of families."""
