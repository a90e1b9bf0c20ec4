# Databricks notebook source
# MAGIC %md
# MAGIC # spark-throttle: one quota, several jobs
# MAGIC
# MAGIC Two queries serve the same tenant, and its quota is one. Give both the same `exchange`, a directory on shared storage, and they
# MAGIC divide the quota among themselves, several times a second if it must be:
# MAGIC
# MAGIC 1. two queries meet in an exchange
# MAGIC 2. the quota follows the demand
# MAGIC 3. one query ends, and the other takes over its share
# MAGIC 4. the account: both together never passed the quota
# MAGIC
# MAGIC Here both run in one Spark session. In production they are jobs on clusters of their own; nothing else changes.

# COMMAND ----------

# Where tables and checkpoints go: on Databricks a directory of a volume, elsewhere a temporary one. It must be empty.
import tempfile
from pathlib import Path

if "dbutils" in globals():
    dbutils.widgets.text("directory", "/Volumes/main/default/throttle/several_jobs")
    home = Path(dbutils.widgets.get("directory"))
else:
    home = Path(tempfile.mkdtemp(prefix="throttle-several-jobs-"))

spark.conf.set("spark.sql.shuffle.partitions", "1")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Two queries meet in an exchange
# MAGIC
# MAGIC The group `gold` may use 300 messages a second, over all jobs. `east` is offered 100 a second, `west` 500. (A lease of ten
# MAGIC seconds is short, so that this notebook is; leave it at the default of a minute.)

# COMMAND ----------

import json

from spark_throttle.load.source import ThrottleLoadSource
from spark_throttle.spark import Throttle

QUOTA, BURST_SECONDS = 300, 3
POLICIES = f"""
resource_groups:
  gold: {{publish: {{messages_per_second: {QUOTA}, burst_seconds: {BURST_SECONDS}}}}}
defaults: {{resource_group: gold}}
"""
(home / "policies.yaml").write_text(POLICIES)
spark.dataSource.register(ThrottleLoadSource)


def start(job, messages_per_second):
    """Start a query that shares its quotas with the others of the exchange."""
    throttle = Throttle(
        policies=home / "policies.yaml", namespace="namespace", size="size_bytes", order_by=["ts", "id"],
        exchange={"path": str(home / "exchange"), "job": job, "interval": 1, "lease": 10},
    )  # fmt: skip
    group = {"prefix": job, "namespaces": 2, "messages_per_second": messages_per_second}
    events = spark.readStream.format("throttle_load").option("groups", json.dumps([group])).load()
    writer = throttle.write_stream(events).format("delta").usage(str(home / f"usage_{job}"))
    writer = writer.option("checkpointLocation", str(home / f"checkpoint_{job}")).trigger(processingTime="1 second")
    return throttle, writer.start(str(home / f"admitted_{job}"))


throttles, queries = {}, {}
for job, rate in (("east", 100), ("west", 500)):
    throttles[job], queries[job] = start(job, rate)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. The quota follows the demand
# MAGIC
# MAGIC Each query reports its demand and divides the quota as the other does: by max-min, so that `east` has all that it wants and
# MAGIC `west` the rest. `status` shows the share, and what each job last said of itself.

# COMMAND ----------


def share(job):
    """Return the share that a job has of gold, in messages a second; `None` before its first batch."""
    scope = throttles[job].status(queries[job]).of_level("resource_group").get("gold")
    return None if scope is None or scope.shared is None else scope.shared.share_messages_per_second


for _ in range(120):
    shares = {job: share(job) for job in queries}
    if None not in shares.values() and shares["west"] > 0.6 * QUOTA:
        break
    queries["west"].awaitTermination(0.5)
print({job: round(rate) for job, rate in shares.items()}, "of", QUOTA)
met = dict(shares)
queries["west"].awaitTermination(4)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. One query ends, and the other takes over its share
# MAGIC
# MAGIC `east` stops. It says so in the exchange, or, if it was killed, its lease runs out; then all of the quota is `west`'s, except the
# MAGIC floor that is kept for `east` in case it comes back.

# COMMAND ----------

queries["east"].stop()
for _ in range(120):
    if share("west") > 0.9 * QUOTA:
        break
    queries["west"].awaitTermination(0.5)
alone = share("west")
print(f"west has {alone:.0f} of {QUOTA} messages a second")
queries["west"].awaitTermination(4)
queries["west"].stop()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. The account
# MAGIC
# MAGIC The usage tables of both, counted together: in no window of time did the jobs admit more than the burst, the rate times the
# MAGIC window, and one message per job.

# COMMAND ----------

import matplotlib.pyplot as plt
import pandas as pd

usage = pd.concat(
    spark.read.format("delta").load(str(home / f"usage_{job}")).toPandas().assign(job=job) for job in queries
)
usage = usage[(usage["level"] == "resource_group") & (usage["scope"] == "gold")].sort_values("batch_time")
usage = usage[usage["batch_id"] > 0]  # the first batch of each took the start of everything
usage["seconds"] = (usage["batch_time"] - usage["batch_time"].min()).dt.total_seconds()

figure, (shares_axes, sum_axes) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
for job, rows in usage.groupby("job"):
    shares_axes.step(rows["seconds"], rows["share_messages_per_second"], where="post", label=job)
shares_axes.axhline(QUOTA, color="grey", linestyle="--", linewidth=0.8)
shares_axes.set(ylabel="share, messages a second", title="The shares never sum to more than the quota")
shares_axes.legend()
total = usage["admitted_messages"].cumsum()
sum_axes.plot(usage["seconds"], total, label="admitted by both")
sum_axes.plot(usage["seconds"], QUOTA * (BURST_SECONDS + usage["seconds"]), "k--", linewidth=0.8, label="burst and rate")
sum_axes.set(xlabel="seconds", ylabel="messages so far", ylim=(0, None))
sum_axes.legend()
plt.show()

# COMMAND ----------

passed = total.to_list()
before = [0, *passed[:-1]]
seconds = usage["seconds"].to_list()
worst = max(
    passed[j] - before[i] - QUOTA * (seconds[j] - seconds[i]) for j in range(len(passed)) for i in range(j + 1)
)
print(f"the fullest window had {worst:.0f} messages beyond its rate; a burst is {QUOTA * BURST_SECONDS}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go from here
# MAGIC
# MAGIC - `docs/several-jobs.md`: the settings of an exchange, what happens when something fails, and why the jobs can never
# MAGIC   pass the quota together.
# MAGIC - `make shares`: three jobs, one of which is killed, with a picture.
