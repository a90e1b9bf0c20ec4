"""The rules of admission written out row by row, in plain integers, and the worlds in which the kernel is compared.

It may import `core`. Start with `reference`.
"""
