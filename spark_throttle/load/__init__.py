"""Synthetic traffic: `throttle_load`, a data source of seeded tenants, for demonstrations, tests and benchmarks.

It may import `errors` and PySpark, and nothing else of the throttle. Start with `traffic`.
"""
