"""A small Kubernetes for each cluster: API server, controllers, scheduler, kubelet."""
