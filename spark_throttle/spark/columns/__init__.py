"""The user's columns: their way into frames and back, their keys, and which have another value at every attempt.

It may import `spark.shard` and what is below. Begin with `payload_columns`.
"""
