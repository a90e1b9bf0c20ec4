"""What the administrator of a tenant may change of what administrators gave the tenant.

It may import `policy`, `core`, and of `store` the modules `store` and `entries`. Start with `tenant_changes`, which
judges a change by its effect.
"""
