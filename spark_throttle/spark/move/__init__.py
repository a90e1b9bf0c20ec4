"""Rows lie in files, staged or where they came from, and one decider decides about them by their places.

It may import `spark.references`, `spark.columns`, `spark.decider`, `spark.delta` and the layers below. Start with
`stager`, which writes rows to files, then read `rows.digest`, which says what the decider gets of them, `decider`, and
`answer`, which says what it tells. `held_files` is about rows that wait, `cutting` about files that leave in parts,
`source_rests` about files of a source, `upkeep` about what is copied and deleted in a batch, `leaving` about rows that
are read without Spark, and `inline_files` about files that lie nowhere, because tasks cannot write.
"""
