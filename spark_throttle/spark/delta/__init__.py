"""The native Delta writer: writes rows to Parquet files and commits the files to a table's log once, without a JVM.

It may import `checkpoint`, `files` and the partition names of `spark.rows`: it knows neither the operator nor frames.
Start with `commit`, then `table_files`.
"""
