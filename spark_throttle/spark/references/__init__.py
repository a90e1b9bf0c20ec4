"""Decisions on references: only a row's namespace, order and size are decided on; its payload stays in its file.

It may import `spark.columns`, `spark.start` and the layers below. Start with `extents`, which says which
files a batch brings, then read `reading`, which makes digests of them, and `selection`, which finds their rows again.
"""
