"""The server under the API: its process, its connections and their time limits, its request rates and its queue.

Start with `admin_server`. It may import `answers` of the API, the audit log, the core's token
buckets, and the errors.
"""
