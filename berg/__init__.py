"""Run machine-learning experiments on Google Cloud accelerators and keep the results in a bucket."""

__version__ = "0.1.0"
