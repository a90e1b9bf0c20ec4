"""Rows lie in files, and one decider decides about them by their places: the way of a row that is staged.

It may import `spark.references`, `spark.columns`, `spark.decider`, `spark.delta` and the layers below. Start with
`stager`, which writes rows to files, then read `digest`, which says what the decider gets of them, `decider`, and
`answer`, which says what it tells. `held_files` is about rows that wait, `cutting` about files that leave in parts,
`upkeep` about what is copied and deleted in a batch, `leaving` about rows that are read without Spark, and
`inline_files` about files that lie nowhere, because tasks cannot write.
"""
