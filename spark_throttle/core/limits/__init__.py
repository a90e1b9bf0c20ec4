"""The limits of a scope: token buckets and the time that pays them, bounds on message size, and Pegasus' rules.

It may import `core.names` and the packages below it. Start with `token_bucket`.
"""
