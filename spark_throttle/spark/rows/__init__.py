"""Rows on their way through Python: packed into Arrow frames, told apart by digests, and unpacked unchanged.

Python workers load it, so it may import only `core` and `errors`, and neither pandas nor policies. Start with `frames`.
"""
