"""Cloud Monitoring: dashboards, and time series of custom metrics."""
