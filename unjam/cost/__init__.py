"""Seconds and bytes of one layer's sub-operations under a strategy."""
