"""Policies in a Delta table: one commit of the table is one revision.

It may import what `store` may. Start with `delta_store`, the store, and `open_table`, the table as it was last read;
`rows` says what the table holds, and what a reader keeps of it.
"""
