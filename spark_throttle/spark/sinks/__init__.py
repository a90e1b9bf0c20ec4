"""The destinations of a batch's rows: the user's sink, the dead letters, the usage table and the feedback.

It may import every subpackage of `spark` except `sources`. Start with `batch_sink` (any sink, through Spark's writer),
then `payload`, which says where its rows come from, by `staged_reader` and `source_reader`, and `file_table`, a Delta
table that takes files. `tables` says which of a query's tables do. `decided_stream` is for a stream whose sink is the
user's own.
"""
