"""Delta tables without a JVM: rows are written to Parquet files, which a commit names in the table's log, once.

It may import `checkpoint`, `files` and the partition names of `spark.rows`: it knows neither the operator nor frames.
Start with `table_log`, then `table_files`.
"""
