"""The checks before a query runs: its paths, whether executors see them, and whether checkpoint and sinks match.

It may import `spark.delta` and the layers below. Start with `start_check`.
"""
