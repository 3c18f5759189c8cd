"""Artifact Registry: repositories of images, over Google's API and over that of registries."""
