"""People and programs: the command line, the admin API and its page. No Spark.

`cli` and `api` stand beside each other, over `watch` (what running jobs do) and `tokens` (who may call). It may import
all below, and nothing but the CLI's or the API's own framework. Begin with `cli.app` or `api.app`.
"""
