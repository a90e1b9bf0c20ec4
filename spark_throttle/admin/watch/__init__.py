"""Running jobs are watched by their control directories: numbers by batch, by namespace, and for Prometheus.

It may import `status`, `control` and the layers below; it knows neither the API nor the command line. Start with
`job_watch`.
"""
