"""Compute Engine: state that knows no HTTP, and its handlers."""
