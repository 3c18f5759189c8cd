"""The verbs: what berg does on the laptop for each of its commands. Nothing here runs on a machine."""
