"""Names of namespaces: the scopes that each passes, by name or glob, and how it is shown.

It may import `core.arithmetic` and `core.quota`. Start with `matching`.
"""
