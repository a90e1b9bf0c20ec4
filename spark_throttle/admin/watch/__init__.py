"""What running jobs do, read from their control directories: numbers of batches, of namespaces, and for Prometheus.

It may import `status`, `control` and what is below: neither the API nor the command line. Begin with `job_watch`.
"""
