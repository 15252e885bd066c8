"""Emulated cluster, calibration and comparison."""
