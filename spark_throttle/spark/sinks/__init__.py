"""Where the rows of a batch go: the user's sink, the dead letters, the usage table, the feedback.

It may import all rooms of `spark` but `sources`. Begin with `batch_sink` (any sink, by Spark's writer), then
`delta_sink` (native); `writer_choice` says which of them a query has, `table_features` which tables the native one may
append to.
"""
