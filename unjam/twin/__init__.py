"""The twin: event engine and step simulation."""
