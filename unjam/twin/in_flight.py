"""Moved to `unjam.schedule.in_flight`."""

from unjam.schedule.in_flight import in_flight, peak_in_flight

__all__ = ["in_flight", "peak_in_flight"]
