"""Kubernetes Engine: clusters, node pools, operations."""
