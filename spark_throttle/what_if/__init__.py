"""What a policy would have done with recorded traffic: a replay through the decisions of a job, in event time.

Start with `replay`. It may import `core` and `policy`; `spark.columns.recorded_traffic` sums events for it.
"""
