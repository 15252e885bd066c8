"""Search for the best parallel strategy."""
