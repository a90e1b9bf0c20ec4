"""Quotas on processing time: what was used of them, and what the rest lets through.

It may import `core.shares` and all below it, but not `core.batch`: no row is decided here. Start with `time_ledger`.
"""
