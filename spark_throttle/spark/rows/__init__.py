"""Rows on their way through Python: packed into frames of Arrow by shard, told apart by digests, and put back unharmed.

Workers load it, so it may import neither pandas nor policies: `core` and `errors` alone. Begin with `frames`.
"""
