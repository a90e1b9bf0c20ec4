"""One micro-batch of one shard: how rows enter, how far every flow gets, what becomes of each, what is left behind.

It may import `core.fair` and what is below, but not `core.lending`: a shard decides with the grants that it was given.
Begin with `admission`.
"""
