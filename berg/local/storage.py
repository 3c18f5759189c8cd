"""Buckets and objects on disk."""

from pathlib import Path


class Storage:
    """All buckets of one cloud."""

    def __init__(self, folder: Path):
        self.folder = folder
