"""Policies, epochs and feedback: what a job is told to enforce, kept in files; no Spark."""
