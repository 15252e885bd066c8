"""Balance of experts, data and layers: algorithms on numpy arrays."""
