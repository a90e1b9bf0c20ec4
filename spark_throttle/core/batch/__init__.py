"""One micro-batch of one shard: how rows enter, how far every flow gets, the decision on each row, the state left.

It may import `core.fair` and the packages below, but not `core.lending`: a shard decides with the grants that it has.
Start with `admission`.
"""
