"""Where god_ray meets Ray and the disk: the run folder, the worker's entry, the driver.

`assemble` builds a loop from an assignment, `worker` runs it under a TorchTrainer, `inline` in this process,
`driver` leads a run from its first attempt to its final state. The only room that imports ray.train.
"""
