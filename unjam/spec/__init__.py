"""What is trained, on what, and how: data classes and presets."""
