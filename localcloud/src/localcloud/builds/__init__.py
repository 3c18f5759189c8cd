"""Cloud Build: builds of container images, run by podman on this host."""
