"""The working tree as a commit: taken, sent, restored, pushed; and berg itself as a wheel."""
