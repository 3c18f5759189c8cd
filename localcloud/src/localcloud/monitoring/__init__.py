"""Cloud Monitoring: dashboards."""
