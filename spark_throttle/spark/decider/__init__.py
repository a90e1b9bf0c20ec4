"""One batch of the decider in a Python worker: the function that Spark calls, and the payload of the waiting rows.

It may import `spark.rows`, `checkpoint` and `core`. Start with `operator`, then `decider_batch`.
"""
