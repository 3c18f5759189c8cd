"""Kubernetes on Google Cloud (GKE): clusters, pods and what they need."""
