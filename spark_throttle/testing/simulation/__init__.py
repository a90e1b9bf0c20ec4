"""A job without Spark: the real parts in Spark's order, over a simulated source, disk, sinks, exchange and time.

It may import everything except `admin` and jobs. Start with `job`.
"""
