"""The destinations of a batch's rows: the user's sink, the dead letters, the usage table and the feedback.

It may import every subpackage of `spark` except `sources`. Start with `batch_sink` (any sink, through Spark's writer),
then `delta_sink` (the native writer). `writer_choice` selects the writer of a query, and `table_features` decides to
which tables the native writer may append.
"""
