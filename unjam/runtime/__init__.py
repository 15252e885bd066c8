"""What runs on devices."""
