# Databricks notebook source
# MAGIC %md
# MAGIC # spark-throttle: a first look
# MAGIC
# MAGIC Several tenants share one stream. This notebook gives them quotas and shows what happens to the excess:
# MAGIC
# MAGIC 1. a small stream of three tenants
# MAGIC 2. quotas in a policy file
# MAGIC 3. one changed line: `throttle.write_stream(events)` in place of `events.writeStream`
# MAGIC 4. which messages were admitted, delayed or rejected, and why
# MAGIC 5. a quota that changes while the stream runs
# MAGIC 6. a dry run: what *would* a quota do?
# MAGIC
# MAGIC It runs on a Databricks cluster with `spark-throttle` installed, and in any PySpark session with Delta. It takes a
# MAGIC minute or two. You will see the numbers that the text names.

# COMMAND ----------

# The directory for tables and checkpoints: in a volume on Databricks, a temporary one elsewhere. It must be empty.
import tempfile
from pathlib import Path

if "dbutils" in globals():
    dbutils.widgets.text("directory", "/Volumes/main/default/throttle/quickstart")
    home = Path(dbutils.widgets.get("directory"))
else:
    home = Path(tempfile.mkdtemp(prefix="throttle-quickstart-"))

# This stream is small, so one partition for shuffles is enough.
spark.conf.set("spark.sql.shuffle.partitions", "1")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. A stream of three tenants
# MAGIC
# MAGIC A **namespace** is `tenant/name`. Our tenants `acme`, `globex` and `initech` have two each, `orders` and `clicks`. Together they
# MAGIC send 3,000 messages of 100 bytes: 1,000 per tenant, 500 per namespace. One more message has no namespace, as can happen.

# COMMAND ----------

from pyspark.sql import functions as F

NAMESPACE = """
    CASE WHEN id < 0 THEN NULL
         ELSE concat(element_at(array('acme', 'globex', 'initech'), cast(id % 3 AS int) + 1),
                     if(id % 2 = 0, '/orders', '/clicks')) END
"""


def send(first, end):
    """Add messages `first` to `end` (excluded) to the source, as one more file."""
    messages = spark.range(first, end, numPartitions=1).select("id", F.expr(NAMESPACE).alias("namespace"))
    messages.withColumn("size_bytes", F.lit(100)).write.mode("append").parquet(str(home / "source"))


send(-1, 3000)
events = spark.readStream.schema("id LONG, namespace STRING, size_bytes INT").parquet(str(home / "source"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Quotas
# MAGIC
# MAGIC A policy names scopes and the rate that each may use. `burst_seconds` is how many seconds of its rate an idle scope saves up.
# MAGIC Messages that exceed a quota wait (`delay`, the default) or go to the dead letters (`reject`). A scope without a quota is unlimited.
# MAGIC
# MAGIC - `acme` has no quota.
# MAGIC - `globex` may send 200 messages per second; the rest wait, in order.
# MAGIC - `initech` may send 100 messages per second; the rest are rejected.

# COMMAND ----------

POLICIES = """
tenants:
  globex:
    publish: {messages_per_second: 200, burst_seconds: 1}
  initech:
    publish: {messages_per_second: 100, burst_seconds: 1, on_excess: reject}
"""
policies = home / "policies.yaml"
policies.write_text(POLICIES)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The one line that changes
# MAGIC
# MAGIC `events.writeStream` becomes `throttle.write_stream(events)`; format, options and trigger stay as they are. Two optional tables
# MAGIC are new: one for rejected rows, and one for the usage of every scope.
# MAGIC
# MAGIC With `availableNow` the query ends when every message has been admitted or rejected. `globex` has 1,000 messages at 200 per
# MAGIC second and a burst of 200, so this takes about four seconds.

# COMMAND ----------

from spark_throttle.spark import Throttle

throttle = Throttle(policies=policies, namespace="namespace", size="size_bytes", order_by=["id"])


def start():
    """Start the throttled query, or continue it from its checkpoint."""
    return (
        throttle.write_stream(events)
        .format("delta")
        .option("checkpointLocation", str(home / "checkpoint"))
        .rejected("delta", path=str(home / "rejected"))
        .usage(str(home / "usage"))
        .trigger(availableNow=True)
        .start(str(home / "admitted"))
    )


query = start()
query.awaitTermination()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. What happened to the messages
# MAGIC
# MAGIC **Admitted**: all 1,000 of `acme`, all 1,000 of `globex`, and 101 of `initech`. They all came at once, so `initech` could use its
# MAGIC burst of 100 and one more: a message passes while the balance is not negative, so the last one takes it to -1. (For the same
# MAGIC reason a message larger than the whole burst passes: late, and its debt is paid off before the next message.)

# COMMAND ----------


def table(name):
    """Return one of the three tables."""
    return spark.read.format("delta").load(str(home / name))


def per_tenant(rows):
    """Return the number of rows of each tenant."""
    counted = rows.groupBy(F.expr("split_part(namespace, '/', 1)").alias("tenant")).count()
    return {row["tenant"]: row["count"] for row in counted.collect()}


admitted = per_tenant(table("admitted"))
print(admitted)

# COMMAND ----------

# MAGIC %md
# MAGIC **Rejected**: the other 899 of `initech`, and the message without a namespace. Each row carries the column `throttle`: the reason, the
# MAGIC scope that rejected it, and how long its sender should wait before trying again.

# COMMAND ----------

table("rejected").groupBy("throttle.reason", "throttle.level", "throttle.scope", "throttle.dimension").count().show()
table("rejected").orderBy("id").select("id", "namespace", "throttle.*").show(3)
rejected = per_tenant(table("rejected"))
print(rejected)

# COMMAND ----------

# MAGIC %md
# MAGIC **Delayed**: the usage table has a row for every scope and batch. `globex` offered 1,000 messages in batch 0, of which 201 were
# MAGIC admitted and 799 waited. Every later batch admitted messages for the tokens that had been added to the bucket since. Nothing was
# MAGIC reordered: in each namespace messages leave in the order of `order_by`.

# COMMAND ----------

usage = table("usage").where("level = 'tenant' AND scope = 'globex'").orderBy("batch_id")
usage = usage.select("batch_id", "batch_time", "offered_messages", "admitted_messages", "waiting_messages")
usage.show()
globex_batches = usage.collect()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. A quota that changes while the stream runs
# MAGIC
# MAGIC Another 3,000 messages come, and `globex` now has a quota of one message per second: its 1,000 would take a quarter of an hour. The
# MAGIC query is restarted from its checkpoint, so it reads only the new file, and the balances are kept.

# COMMAND ----------

import os


def replace_policies(text):
    """Replace the policy file atomically, so that nobody reads half of it."""
    (home / "policies.new").write_text(text)
    os.replace(home / "policies.new", policies)


replace_policies(POLICIES.replace("200", "1"))
send(3000, 6000)
last_batch = throttle.status(query).batch_id
query = start()
while throttle.status(query).batch_id == last_batch and query.isActive:
    query.awaitTermination(1)

# COMMAND ----------

# MAGIC %md
# MAGIC The first batch is done, and `status` shows the state of each tenant that has a quota. `acme` is not limited, so it is not listed.
# MAGIC Nearly all 1,000 messages of `globex` wait.

# COMMAND ----------

tenants = throttle.status(query).of_level("tenant")
for scope in tenants.values():
    print(
        f"{scope.scope}: quota {scope.messages_per_second}/s, offered {scope.offered_messages}, "
        f"admitted {scope.admitted_messages}, rejected {scope.rejected_messages}, waiting {scope.waiting_messages}"
    )

# COMMAND ----------

# MAGIC %md
# MAGIC Now the file is replaced. The new quota takes effect in the next batch, without a restart, and the query ends within seconds. (An
# MAGIC invalid file changes nothing: the last valid quotas stay in force, and the log says what is wrong.)

# COMMAND ----------

replace_policies(POLICIES.replace("200", "1000"))
query.awaitTermination()
admitted_after = per_tenant(table("admitted"))
print(admitted_after)

# COMMAND ----------

# MAGIC %md
# MAGIC All 2,000 messages each of `acme` and `globex` have been admitted.
# MAGIC
# MAGIC ## 6. A dry run
# MAGIC
# MAGIC What would quotas do to a stream that is not throttled yet? With `on_excess: observe` every message is admitted, and those that a
# MAGIC quota would have held back are counted. Policies can also be a mapping. Here all 6,001 messages come at once: of the 2,000 of
# MAGIC `initech`, 101 would have passed, so 1,899 are counted.

# COMMAND ----------

dry_run = Throttle(
    policies={"tenants": {"initech": {"publish": {"messages_per_second": 100, "burst_seconds": 1, "on_excess": "observe"}}}},
    namespace="namespace",
    size="size_bytes",
    order_by=["id"],
)
(
    dry_run.write_stream(events)
    .format("delta")
    .option("checkpointLocation", str(home / "dry_run_checkpoint"))
    .usage(str(home / "dry_run_usage"))
    .trigger(availableNow=True)
    .start(str(home / "dry_run_admitted"))
    .awaitTermination()
)
observed = table("dry_run_usage").where("level = 'tenant'").groupBy("scope")
observed = observed.agg(F.sum("admitted_messages").alias("admitted"), F.sum("observed_messages").alias("observed"))
observed.show()
dry_run_counts = observed.first()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where to go from here
# MAGIC
# MAGIC - `conf/policies/example.yaml`: resource groups that many tenants share, weights, bytes per second, and bounds of the queue.
# MAGIC - `conf/throttle.yaml`: the throttle as a job for `spark-submit`, with Kafka, Delta or files as its source.
# MAGIC - `README.md`: the guarantees, and what each sink does with a batch that is written again after a crash.
