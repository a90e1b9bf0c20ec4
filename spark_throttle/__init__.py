"""Holds every tenant of a Spark Structured Streaming job to its quota: fairly, in order, no row lost or doubled."""
