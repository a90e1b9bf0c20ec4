"""The order of rows when a shared scope runs short: start-time fair queueing, and the row at which tokens run out.

It may import `core.state`, `core.limits` and the packages below. Start with `fair_queue`, then `contention`.
"""
