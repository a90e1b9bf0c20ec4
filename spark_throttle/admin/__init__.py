"""People and programs: the command line, the admin API and its page. No Spark.

`cli` and `api` are independent of each other; both use `watch` (what running jobs do) and `tokens` (who may call). It
may import every layer below, and otherwise only the framework of the CLI or of the API. Start with `cli.options` or
`api.app`.
"""
