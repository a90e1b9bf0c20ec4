"""The oracle, and strategies for worlds and histories: for our tests and users' own."""
