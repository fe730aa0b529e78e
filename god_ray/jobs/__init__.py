"""Runs as Ray jobs: a spec and its folder go to a cluster, the logs and the exit code come back.

`package` says what travels, `reach` talks to the cluster, `submit` brings both together. Nothing of the
caller's environment is sent.
"""
