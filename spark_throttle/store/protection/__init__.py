"""Which changes cost protection: they leave no limit, set a quota to 0, lift a limit in use, or end an emergency.

It may import `policy`, `core`, and of `store` the modules `store`, `entries`, `memory_store` and `delegation`. Start
with `lost_protection`, which judges changes by their effect on every name.
"""
