"""Snapshots of the training state, and checkpoints that are durable and verified.

`state` turns live objects into a `Snapshot` and back, `store` keeps snapshots in a run's folder, `export`
makes a plain weights file of one. Imports nothing here, so that listing checkpoints needs no torch.
"""
