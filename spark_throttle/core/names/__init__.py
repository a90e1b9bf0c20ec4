"""Names of namespaces: which scopes each passes, by globs too, which shard it lives in, and how it is shown.

It may import `core.arithmetic` and `core.quota`. Begin with `matching`.
"""
