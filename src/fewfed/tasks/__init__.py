"""What can be predicted."""
