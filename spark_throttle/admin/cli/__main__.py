"""``python -m spark_throttle.admin.cli``: the command `spark-throttle` where its script is not installed."""

from spark_throttle.admin.cli import main

if __name__ == "__main__":
    main()
