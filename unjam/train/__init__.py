"""Reference model and trainer."""
