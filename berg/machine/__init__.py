"""What runs on machines only."""
