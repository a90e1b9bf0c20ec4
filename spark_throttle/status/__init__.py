"""The newest batch of a job is shown to people: the status of its scopes, the usage table, and why a namespace is held.

It reads what `control` writes, and no decision depends on it. It may import all layers below, but no Spark. Start with
`status`.
"""
