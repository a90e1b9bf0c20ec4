"""Functions for `foreachBatch`: called with a batch's admitted rows, and told "not now" by their destinations.

It may import every subpackage of `spark` except `sources`. Start with `function_sink`, which calls the function.
"""
