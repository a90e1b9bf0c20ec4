"""The rules of admission written out row by row, in plain integers, and the worlds in which the kernel is compared.

Start with `reference`.
"""
