"""What is looked at before a query runs: its paths, whether executors see them, whether its checkpoint is its sinks'.

It may import `spark.delta` and what is below. Begin with `start_check`.
"""
