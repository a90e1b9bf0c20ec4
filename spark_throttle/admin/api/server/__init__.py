"""The server under the API: its process, the addresses of callers, their rates and turns, and the audit of requests.

Start with `admin_server`. It may import the audit log, the core's token buckets, and the errors.
"""
