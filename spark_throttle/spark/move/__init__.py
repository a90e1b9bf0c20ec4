"""Rows lie in files, staged or where they came from, and one decider decides about them by their places.

It may import `spark.references`, `spark.columns`, `spark.delta` and the layers below. Start with `stager`, which writes
rows to files, then read `rows.digest`, which says what the decider gets of them, `decider` and its `decider_batch`, and
`answer`, which says what it tells. `held_files` and `queue_frames` are about rows that wait, `cutting` about files that
leave in parts, `upkeep` about what is copied and deleted in a batch, `leaving` about rows that are read without Spark,
and `waiting_files` about files that Spark does not read.
"""
