"""Decisions on references: only a row's namespace, order and size are decided on; its payload stays in its file.

It may import `spark.columns`, `spark.start` and the layers below. Start with `extents`, which lists the files that a
batch brings, then read `reading`, which makes digests of them, and `second_reading`, which finds their rows again.
"""
