"""Functions for `foreachBatch`: called with a batch's admitted rows, and told "not now" by their destinations.

It may import every subpackage of `spark` except `sources`. Start with `function_sink`, which calls the function.
`offers` is pure: it decides how many of the rows for a destination a batch offers.
"""
