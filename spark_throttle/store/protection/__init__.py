"""Which changes cost protection: they leave no limit at all, set a quota to 0, or lift a limit of a scope in use.

It may import `policy`, `core`, and of `store` the modules `store`, `entries`, `memory_store` and `delegation`. Start
with `lost_protection`, which judges changes by their effect on every name.
"""
