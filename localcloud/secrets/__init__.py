"""Secret Manager."""
