"""The rules of admission written out a row at a time, in plain integers, and worlds to compare the kernel with them in.

It may import `core`. Begin with `reference`.
"""
