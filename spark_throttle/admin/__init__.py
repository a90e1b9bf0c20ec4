"""People and programs: the command line, the admin API and its page. No Spark."""
