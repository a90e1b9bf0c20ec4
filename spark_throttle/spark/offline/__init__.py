"""What is done to the checkpoint of a query that has stopped, with Spark and without the query.

It may import all of `spark` but `throttle`. Start with `stopped_query`, then `drain`.
"""
