"""Exact integer arithmetic on columns: runs of equal keys, wide products, units, rates as codes, packed arrays.

It may import `errors` and the array types of `core.quota`, and knows nothing about tenants. Start with `segments`.
"""
