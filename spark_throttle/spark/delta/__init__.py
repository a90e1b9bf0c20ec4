"""The native Delta writer: rows into Parquet files, files into a table's log once, without a JVM.

It may import `checkpoint`, `files` and the names of partitions in `spark.rows`: it knows no operator and no frame.
Begin with `commit`, then `table_files`.
"""
