"""Decisions as arithmetic: arrays in, new arrays out; no clock, no I/O, no randomness."""
