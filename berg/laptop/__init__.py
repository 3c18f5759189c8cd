"""The verbs: what berg does on the laptop for each command. Nothing here runs on a machine."""
