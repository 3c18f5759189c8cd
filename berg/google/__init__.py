"""Google's services behind plain functions."""
