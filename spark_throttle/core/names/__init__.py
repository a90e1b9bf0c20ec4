"""Names of namespaces: the scopes that each passes, by name or glob, the shard it lives in, and how it is shown.

It may import `core.arithmetic` and `core.quota`. Start with `matching`.
"""
