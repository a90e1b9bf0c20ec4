"""Every change of a store is checked: no tenant's administrator loosens anything, and protection is lost knowingly.

It may import `policy`, `core`, and of `store` the modules `store`, `entries`, `committer` and `memory_store`. Start
with `checked_changes`. `policy_view` says what holds a name, and `limit_changes` what becomes of that by a change.
"""
