"""One batch of one shard in a worker: Spark's function, state in, frames out, with the payload of the rows that wait.

It may import `spark.rows` and `core`. Begin with `operator`, then `shard_batch`.
"""
