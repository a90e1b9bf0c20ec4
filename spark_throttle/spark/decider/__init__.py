"""One batch of the decider in a Python worker, and the places of the waiting rows.

It may import `spark.rows`, `checkpoint` and `core`. Start with `decider_batch`, which `move.decider` calls.
"""
