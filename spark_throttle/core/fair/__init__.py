"""Shared scopes that run short are given out down a tree of groups, tenants and namespaces, as a fluid would be.

It may import `core.state`, `core.limits` and the packages below. Start with `tree`, then `contest` and `turns`.
"""
