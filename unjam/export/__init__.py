"""Launch flags, traces and reports."""
