"""Cloud Storage: state that knows no HTTP, and its handlers."""
