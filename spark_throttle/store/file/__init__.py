"""Policies in a YAML file, with their history in an SQLite file beside it.

It may import the protocol, the entries and `memory_store` of `store`, then `policy` and the layers below. Start with
`file_store`, then `history`.
"""
