"""How workers agree on one gradient.

`group` talks between processes, `layout` packs a leaf's tensors and notes into one message, `exchange` sums
them in a fixed order (bitwise), `ddp` lets torch's DistributedDataParallel do it (relaxed). Knows nothing
of data, steps or Ray. A dead peer shows here first, as a RuntimeError out of a collective.
"""
