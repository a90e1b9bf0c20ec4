"""Quotas of Kafka, Pegasus and Pulsar as policy documents, with a list of what these cannot express.

It may import `policy` and the layers below; it knows no store and no job. Start with `origin`.
"""
