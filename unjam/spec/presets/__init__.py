"""Data files: model configurations and clusters."""
