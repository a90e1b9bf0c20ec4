"""What a job did last, for those who look: the status of its scopes, the usage table, and why a namespace is held.

It reads what `control` writes, and nothing reads it to decide. It may import all below: no Spark. Begin with `status`.
"""
