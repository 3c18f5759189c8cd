"""Acceptance rows for any `berg` on the PATH: promises to a user, tried from outside.

A row sees what a user sees: commands, options, exit codes, `--json`, the bucket, ssh, and on the
embedded cloud its control routes. No row imports a module of Berg's.
"""
