"""Training itself: the step on one screen, evaluation, and the ports that the rooms above fill.

`step` does one optimizer update, `loop` runs a worker from a cursor to an outcome, `evaluate` counts each
row once. The loop does not know how workers come and go, nor Ray: everything that touches the world is a
port (`ports`).
"""
