"""What holds one scope to its limit: token buckets, the time that pays them, bounds on sizes, Pegasus' rules.

It may import `core.names` and what is below. Begin with `token_bucket`.
"""
