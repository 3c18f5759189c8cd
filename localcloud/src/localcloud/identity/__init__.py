"""Who may call, and what they may do."""
