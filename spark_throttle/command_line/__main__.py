"""``python -m spark_throttle.command_line``: the command `spark-throttle` where its script is not installed."""

from spark_throttle.command_line import main

if __name__ == "__main__":
    main()
