"""Exact integers over many things at once: runs of equal keys, wide products, units, rates as codes, packed arrays.

It may import `errors` and the array types of `core.quota`, and knows nothing of tenants. Begin with `segments`.
"""
