"""Decisions on references: only a row's namespace, order and size are decided on; its payload stays in its file.

It may import `spark.columns`, `spark.start` and the layers below. Start with `extents`, which says what a reference
is, then read `reading`, which makes references of files, and `selection`, which finds their payload again.
"""
