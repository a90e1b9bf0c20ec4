"""Whose rows go when shared scopes run short: a tree of groups, tenants and namespaces, served as a fluid would be.

It may import `core.state`, `core.limits` and the packages below. Start with `tree`, then `contest` and `turns`.
"""
