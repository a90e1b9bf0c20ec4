"""One batch of one shard in a Python worker: the function that Spark calls, and the payload of the waiting rows.

It may import `spark.rows`, `checkpoint` and `core`. Start with `operator`, then `shard_batch`.
"""
