"""What a job's own programs find on python's path: `import berg`, for berg.report."""
