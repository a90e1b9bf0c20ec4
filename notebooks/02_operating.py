# Databricks notebook source
# MAGIC %md
# MAGIC # spark-throttle: operating a throttled query
# MAGIC
# MAGIC A query has been throttled for a while, and people ask questions:
# MAGIC
# MAGIC 1. Is every group within its quota, and who waits?
# MAGIC 2. Who uses what, and who was rejected, and why?
# MAGIC 3. Why is this one tenant slow?
# MAGIC 4. What would happen with another quota?
# MAGIC
# MAGIC The answers are in the usage table, which `.usage(path)` writes: a row for each scope and batch. This notebook makes a
# MAGIC query of its own, waits for its first ten batches, and then asks. On your own query, begin at section 1.

# COMMAND ----------

# Where tables and checkpoints go: on Databricks a directory of a volume, elsewhere a temporary one. It must be empty.
import tempfile
from pathlib import Path

if "dbutils" in globals():
    dbutils.widgets.text("directory", "/Volumes/main/default/throttle/operating")
    home = Path(dbutils.widgets.get("directory"))
else:
    home = Path(tempfile.mkdtemp(prefix="throttle-operating-"))

spark.conf.set("spark.sql.shuffle.partitions", "1")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A query to look at
# MAGIC
# MAGIC Three groups of synthetic traffic, 600 messages a second:
# MAGIC
# MAGIC | group | offered | quota | excess |
# MAGIC |---|---|---|---|
# MAGIC | gold | 150/s | 200/s | none |
# MAGIC | bronze | 300/s | 150/s | waits |
# MAGIC | free | 150/s | 100/s | is rejected |

# COMMAND ----------

import json

from spark_throttle.load.source import ThrottleLoadSource
from spark_throttle.spark import Throttle

BURST_SECONDS = 3
POLICIES = f"""
resource_groups:
  gold: {{publish: {{messages_per_second: 200, burst_seconds: {BURST_SECONDS}}}}}
  bronze: {{publish: {{messages_per_second: 150, burst_seconds: {BURST_SECONDS}}}}}
  free: {{publish: {{messages_per_second: 100, burst_seconds: {BURST_SECONDS}, on_excess: reject}}}}
tenants:
  gold-00: {{resource_group: gold}}
  bronze-00: {{resource_group: bronze}}
  free-00: {{resource_group: free}}
"""
(home / "policies.yaml").write_text(POLICIES)

groups = [
    {"prefix": prefix, "namespaces": 4, "messages_per_second": rate, "zipf_exponent": 0.8}
    for prefix, rate in (("gold", 150), ("bronze", 300), ("free", 150))
]
spark.dataSource.register(ThrottleLoadSource)
events = (
    spark.readStream.format("throttle_load")
    .option("groups", json.dumps(groups))
    .option("seed", 7)
    .load()
)
throttle = Throttle(
    policies=home / "policies.yaml", namespace="namespace", size="size_bytes", order_by=["ts", "id"]
)
query = (
    throttle.write_stream(events)
    .format("delta")
    .option("checkpointLocation", str(home / "checkpoint"))
    .rejected("delta", path=str(home / "rejected"))
    .usage(str(home / "usage"))
    .trigger(processingTime="1 second")
    .start(str(home / "admitted"))
)
while throttle.status(query).batch_id < 10 and not query.awaitTermination(0.5):
    pass

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Is every group within its quota, and who waits?
# MAGIC
# MAGIC `throttle.status(query)` is the last batch in numbers, from the driver. From a shell, `spark-throttle status --control` reads the
# MAGIC same from the checkpoint.

# COMMAND ----------

for scope in throttle.status(query).of_level("resource_group").values():
    print(f"{scope.scope}: {scope.messages_per_second:.0f}/s allowed, {scope.waiting_messages} messages wait")
query.stop()

# COMMAND ----------

# MAGIC %md
# MAGIC The usage table tells the whole story. A batch may take more than the rate for its seconds, since an idle group saves up a
# MAGIC burst; over time the admitted messages stay below the burst and the rate. (Batch 0 took the start of everything, and is left out.)

# COMMAND ----------

import matplotlib.pyplot as plt

usage = spark.read.format("delta").load(str(home / "usage")).where("batch_id > 0").orderBy("batch_id").toPandas()
start = usage["batch_time"].min()

figure, panels = plt.subplots(1, 3, figsize=(11, 3.5), sharey=True, layout="constrained")
for axes, (name, quota, excess) in zip(
    panels, (("gold", 200, "has no excess"), ("bronze", 150, "the excess waits"), ("free", 100, "the excess is rejected"))
):
    of_group = usage[(usage["level"] == "resource_group") & (usage["scope"] == name)]
    seconds = (of_group["batch_time"] - start).dt.total_seconds()
    axes.plot(seconds, of_group["offered_messages"].cumsum(), ":", color="tab:grey", label="offered")
    axes.plot(seconds, of_group["admitted_messages"].cumsum(), color="tab:blue", label="admitted")
    axes.plot(seconds, quota * (BURST_SECONDS + seconds), "--", color="black", linewidth=0.8, label="burst and rate")
    axes.set(title=f"{name}: {excess}", xlabel="seconds")
panels[0].set(ylabel="messages so far")
panels[0].legend()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Who uses what, and who was rejected?
# MAGIC
# MAGIC Namespaces have rows too. This is a bill, and the beginning of a conversation with a tenant.

# COMMAND ----------

namespaces = usage[usage["level"] == "namespace"].groupby("scope")
counts = ["offered_messages", "admitted_messages", "admitted_bytes", "rejected_messages"]
bill = namespaces[counts].sum().join(namespaces["waiting_messages"].last())
print(bill.sort_values("offered_messages", ascending=False).to_string())

# COMMAND ----------

# MAGIC %md
# MAGIC Every rejected row carries the reason, the scope that refused it, and when its sender may come again.

# COMMAND ----------

rejected = spark.read.format("delta").load(str(home / "rejected"))
rejected.groupBy("throttle.reason", "throttle.level", "throttle.scope", "throttle.dimension").count().show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Why is this one tenant slow?
# MAGIC
# MAGIC `bronze-00/ns-0000` asks. The rows that wait are in the checkpoint, and reading them disturbs no query. In bronze every namespace
# MAGIC that has waited was admitted as much as the others (`admitted_messages` above): the quota is divided by weight, and who sends more
# MAGIC waits longer.

# COMMAND ----------

from spark_throttle.spark.state_reader import read_queued

waiting = read_queued(spark, str(home / "checkpoint"), schema=events.schema).toPandas()
print(waiting.groupby("namespace")["ts"].agg(["count", "min", "max"]).to_string())

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. What would happen with another quota?
# MAGIC
# MAGIC `SimulatedJob` makes the decisions of the real job without Spark. All that it needs is in the usage table: how many messages, and
# MAGIC of which size, each namespace brought in each batch. Three proposals for bronze: leave it, 250 a second, or reject the excess.

# COMMAND ----------

from spark_throttle.testing import SimulatedJob

arrivals = usage[(usage["level"] == "namespace") & (usage["offered_messages"] > 0)]
proposals = {
    "as it is": POLICIES,
    "250 a second": POLICIES.replace("messages_per_second: 150", "messages_per_second: 250"),
    "reject": POLICIES.replace("messages_per_second: 150", "on_excess: reject, messages_per_second: 150"),
}


def replay(policies):
    """Return how many messages of bronze wait after each batch, and how many were rejected in the end."""
    job, last, waits = SimulatedJob(policies), start, []
    for batch_time, rows in arrivals.groupby("batch_time"):
        for name, messages, size in zip(rows["scope"], rows["offered_messages"], rows["offered_bytes"]):
            job.offer([(name, int(size) // int(messages))] * int(messages))
        job.trigger(after_ms=int((batch_time - last).total_seconds() * 1000))
        last = batch_time
        waits.append(sum(row.namespace.startswith("bronze") for row in job.waiting))
    return waits, sum(letter.row.namespace.startswith("bronze") for letter in job.rejected)


what_if = {name: replay(policies) for name, policies in proposals.items()}
for name, (waits, lost) in what_if.items():
    print(f"bronze {name}: at most {max(waits)} wait, {waits[-1]} at the end, {lost} rejected")

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
seconds = (arrivals.groupby("batch_time").size().index - start).total_seconds()
for name, (waits, _) in what_if.items():
    axes.plot(seconds, waits, marker=".", label=name)
axes.set(xlabel="seconds", ylabel="messages of bronze waiting", title="What bronze would have had to wait for")
axes.legend()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go from here
# MAGIC
# MAGIC - `docs/operating.md`: what to alert on, the metrics for Prometheus.
# MAGIC - `docs/policies.md`: what a changed quota does to those who wait; tests of your own policies with `SimulatedJob`.
