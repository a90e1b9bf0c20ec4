"""One micro-batch: how rows enter, how far every flow gets, the decision on each row, the state left.

It may import `core.fair` and the packages below. Start with `admission`.
"""
