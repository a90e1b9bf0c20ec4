"""Staged rows on their way out: committed to a Delta table as they lie, or read once by Spark for any other sink.

It may import what `sinks` may, and the rest of `sinks`. Start with `payload`, then `table` and `reader`;
`decided_stream` is for a stream whose sink is the user's own.
"""
