"""The control plane of one job: when an epoch is due, what stands in it, and what the shards report of it.

It may import `policy`, `sharing` and what is below: no store and no Spark. Begin with `plane`, then `epochs` and
`feedback`.
"""
