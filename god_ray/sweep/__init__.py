"""Many runs of one spec with other values, through `ray.tune`: random search, and ASHA to give up early.

`search` drives a sweep, `trial` is one run of it in a process of its own, `ranking` compares what came out.
A trial is a run like any other: it has a folder, a ledger and a digest, and `god-ray resume` goes on with it.
"""
