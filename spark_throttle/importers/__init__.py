"""Other systems' quotas as policy documents: Kafka's, Pegasus' and Pulsar's, with what cannot be expressed.

It may import `policy` and what is below: neither a store nor a job. Begin with `import_result`.
"""
