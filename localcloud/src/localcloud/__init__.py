"""The embedded Google Cloud: Compute Engine, Cloud Storage and metadata servers on loopback."""
