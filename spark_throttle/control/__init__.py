"""The control plane of one job: when an epoch is due, what it contains, and what the decider reports back.

It may import `policy`, `sharing` and the layers below them, but no store and no Spark. Start with `plane`, then
`epochs` and `reports`.
"""
