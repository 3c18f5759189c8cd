"""The Cloud Billing Catalog of the embedded cloud."""
