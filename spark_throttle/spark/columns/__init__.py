"""The user's columns: conversion to and from frames, grouping keys, and columns whose values change when run again.

It may import `spark.rows` and the layers below. Start with `payload_columns`.
"""
