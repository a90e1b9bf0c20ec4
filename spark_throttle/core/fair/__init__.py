"""Who goes next when a shared scope runs short: start-time fair queueing, and where each scope's tokens end.

It may import `core.state`, `core.limits` and what is below. Begin with `fair_queue`, then `contention`.
"""
