# The only entry point: people, pre-commit and .ci/run call these targets and nothing else.
# The machine needs Python 3.11 or newer, Java 17 or newer and make. Everything else is set up on demand and kept:
# packages in .venv, jars in build/jars. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
PYTHON := $(VENV)/bin/python
JARS := build/jars
CLASS_ARCHIVE := build/spark-classes.jsa

# The first interpreter that is new enough; `make BASE_PYTHON=/path/to/python setup` selects another.
BASE_PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

# The arguments for `spark-submit`: jobs build their session with a plain getOrCreate(), here as on a cluster.
# The jars come from build/jars, so spark.jars.packages of the properties file is emptied: nothing is resolved at start.
spark_env = PYSPARK_PYTHON=$(CURDIR)/$(PYTHON) PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(PYTHON) \
	SPARK_LOCAL_IP=127.0.0.1 PYTHONPATH=$(CURDIR) \
	PYSPARK_SUBMIT_ARGS="--properties-file conf/spark-defaults.conf --conf spark.jars.packages= \
	--jars $$(printf '%s,' $(CURDIR)/$(JARS)/$(1)/*.jar) pyspark-shell"

# For many processes on few cores: the threads of numpy's libraries only wait for each other, and burn time as they do.
ONE_THREAD := OMP_NUM_THREADS=1

# A shell that tells Python to keep no compiled modules would have each of Spark's workers compile this package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------------------ the two commands

.PHONY: run
run: setup jars ## run the demonstration: a throttled stream of 200 namespaces, a table, a plot, one line of JSON
	@$(call spark_env,delta) $(PYTHON) demos/demo.py $(ARGS)

.PHONY: shares
shares: setup jars ## run three jobs that share two quotas, and kill one: tables, a plot, one line of JSON
	@$(call spark_env,delta) $(PYTHON) demos/shares.py $(ARGS)

.PHONY: admin-demo
admin-demo: setup jars ## demonstrate the control plane: change a quota by command line, API and page
	@$(call spark_env,delta) $(PYTHON) demos/admin_demo.py $(ARGS)

# In three processes, for two of them often wait for Spark. Which tests share one is said in tests/conftest.py.
in_three = $(ONE_THREAD) $(PYTHON) -m pytest --randomly-seed=1 --numprocesses 3 --dist loadscope --no-loadscope-reorder

.PHONY: test
test: setup jars tool-jars $(CLASS_ARCHIVE) ## run the tests that must pass before a change lands
	@$(in_three) $(ARGS)

.PHONY: test-all
test-all: setup jars tool-jars $(CLASS_ARCHIVE) ## run also those marked `thorough`: all but Kafka's and the widest (half an hour)
	@$(in_three) -m "not kafka and not wide" $(ARGS)

# ------------------------------------------------------------------------------------------------ tests in parts

.PHONY: unit
unit: setup ## run the quick tests that need neither a JVM nor a browser, and the doctests (a minute)
	@$(ONE_THREAD) $(PYTHON) -m pytest --randomly-seed=1 --numprocesses 2 --dist worksteal \
		-m "not jvm and not kafka and not slow and not thorough" $(ARGS)

.PHONY: search
search: setup ## run the tests without a JVM in another order, with other and more examples than every run draws
	@HYPOTHESIS_PROFILE=search $(ONE_THREAD) $(PYTHON) -m pytest --numprocesses 2 --dist worksteal \
		--randomly-seed=default -m "not jvm and not kafka" $(ARGS)

.PHONY: integration
integration: setup jars tool-jars $(CLASS_ARCHIVE) ## run the tests that start a JVM
	@$(PYTHON) -m pytest -m "jvm and not kafka and not wide" tests $(ARGS)

.PHONY: notebooks
notebooks: setup jars $(CLASS_ARCHIVE) ## run the tests of the notebooks
	@$(PYTHON) -m pytest -m "not kafka" tests/notebooks $(ARGS)

.PHONY: browser
browser: ## install Debian's chromium and chromium-driver, for the tests of the page and `make admin-demo`
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		$$([ "$$(id -u)" = 0 ] || echo sudo) apt-get install --yes --no-install-recommends chromium chromium-driver

.PHONY: api-fuzz
api-fuzz: setup ## make 20,000 requests generated from the OpenAPI description, with and without tokens
	@PYTHONPATH=$(CURDIR) $(PYTHON) scripts/api_fuzz.py $(ARGS)

.PHONY: api-load
api-load: setup ## 2,000 silent and 1,000 slow connections while valid callers make 200 requests a second, for a minute; needs nginx
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.api_load --seed $(SEED) $(ARGS)

.PHONY: list-a-million
list-a-million: setup ## list a million namespaces of a Delta store through the API, page by page
	@PYTHONPATH=$(CURDIR) $(PYTHON) scripts/list_a_million.py $(ARGS)

.PHONY: openapi
openapi: setup ## regenerate conf/openapi.json from the code
	@PYTHONPATH=$(CURDIR) $(PYTHON) scripts/openapi.py conf/openapi.json

.PHONY: wide-test
wide-test: setup jars $(CLASS_ARCHIVE) ## send rows of 2,000 columns, and one of 50 MB, every way to a sink (some minutes)
	@$(PYTHON) -m pytest -m wide --timeout 1800 tests/integration/test_wide_rows.py $(ARGS)

.PHONY: kafka-test
kafka-test: setup kafka-jars ## run the main job against a real Kafka broker on loopback, and kill one
	@$(PYTHON) -m pytest -m kafka tests/kafka $(ARGS)

.PHONY: versions
versions: setup jars $(JARS)/delta-4.1.stamp $(JARS)/iceberg-4.1.stamp tool-jars $(CLASS_ARCHIVE) ## run the tests on other versions of Spark (`ARGS="4.1.4 4.3.0"`), each in an environment of its own: the table of docs/install.md
	@$(PYTHON) scripts/versions.py $(ARGS)

# ------------------------------------------------------------------------------------------------ long runs

KILLS ?= 30
SEED ?= 1
SINK ?= delta
SOURCE ?= files
QUOTAS ?= messages

.PHONY: crash
crash: setup jars $(if $(filter kafka,$(SOURCE)),kafka-jars) $(CLASS_ARCHIVE) ## kill a job KILLS times at points drawn from SEED, from SOURCE (files, kafka, references, references-delta) to SINK; recount; one line of JSON
	@$(PYTHON) -m tests.crash.run --kills $(KILLS) --seed $(SEED) --source $(SOURCE) --sink $(SINK) --quotas $(QUOTAS) $(ARGS)

CLUSTER_VENV := build/cluster-venv

.PHONY: cluster-test
cluster-test: setup s3a-jars $(CLUSTER_VENV)/.stamp build/cluster-classes.jsa ## kill executors, workers, driver and master of a cluster over an S3 server, KILLS times; one line of JSON
	@$(ONE_THREAD) $(PYTHON) -m tests.cluster.run --kills $(KILLS) --seed $(SEED) $(ARGS)

.PHONY: cluster-growth
cluster-growth: setup s3a-jars $(CLUSTER_VENV)/.stamp build/cluster-classes.jsa ## measure a batch on such a cluster over executors and the store's latency: a plot, one line of JSON
	@$(ONE_THREAD) $(PYTHON) -m tests.cluster.growth $(ARGS)

.PHONY: cluster-types
cluster-types: setup s3a-jars $(CLUSTER_VENV)/.stamp ## send rows of every type, of 2,000 columns and of 50 MB every way on such a cluster: one line of JSON
	@$(ONE_THREAD) $(PYTHON) -m tests.cluster.types

.PHONY: cluster-demos
cluster-demos: setup browser s3a-jars $(CLUSTER_VENV)/.stamp ## run the demonstrations on such a cluster, their tables on the store: one line of JSON
	@$(PYTHON) -m tests.cluster.demos $(ARGS)

MINUTES ?= 30

.PHONY: soak
soak: setup jars ## run an overloaded job for MINUTES while everything changes: plot memory, state, files
	@$(call spark_env,delta) $(PYTHON) demos/soak.py --minutes $(MINUTES) $(ARGS)

.PHONY: life
life: setup ## simulate lives of a job for MINUTES, drawn from SEED, without a JVM; check all laws; one line of JSON
	@$(ONE_THREAD) $(PYTHON) -m tests.life.run --minutes $(MINUTES) --seed $(SEED) $(ARGS)

.PHONY: life-without
life-without: setup ## revert in a copy each fix that the lives guard, and report after how many steps a law is broken
	@$(ONE_THREAD) $(PYTHON) -m tests.life.taken_back --seed $(SEED) $(ARGS)

.PHONY: model
model: setup ## explore all states of the models of leases and batches in wide bounds (hours): counts, one line of JSON
	@$(ONE_THREAD) PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.models.run $(ARGS)

# `SEED` and `MINUTES` of the other targets have defaults; a night has its own.
given = $(if $(filter-out file,$(origin $(1))),$(if $($(1)),--$(2) $($(1))))

.PHONY: nightly
nightly: setup jars $(CLASS_ARCHIVE) ## look for what tests do not find: lives, models, kills, a search; SEED is the date, MINUTES 120; one line of JSON
	@$(ONE_THREAD) PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.nightly.run $(call given,SEED,seed) $(call given,MINUTES,minutes)

CHANGES ?= 100000

.PHONY: loosened-jobs
loosened-jobs: setup ## simulate jobs while tenants' administrators make CHANGES, drawn from SEED: none admits more; one line of JSON
	@$(PYTHON) -m tests.admin.loosened_jobs --changes $(CHANGES) --seed $(SEED) $(ARGS)

FAULTS ?= 100000

.PHONY: lies
lies: setup ## inject FAULTS, drawn from SEED, into all that jobs and policy stores keep: refused or right; one line of JSON
	@$(ONE_THREAD) $(PYTHON) -m tests.lies.run --faults $(FAULTS) --seed $(SEED) $(ARGS)

COUNT ?= 60
MUTANTS_VENV := build/mutants-venv

.PHONY: mutants
mutants: $(MUTANTS_VENV)/.stamp ## change COUNT lines of core, control and sharing, as SEED draws them, one at a time; do the tests notice? It goes on where it stopped
	@$(ONE_THREAD) PYTHONPATH=$(CURDIR) $(MUTANTS_VENV)/bin/python -m tests.mutants.run --count $(COUNT) --seed $(SEED) $(ARGS)

# ------------------------------------------------------------------------------------------------ measurements

REPEATS ?= 5

.PHONY: bench
bench: setup jars kafka-jars ## run every benchmark (two hours on a quiet machine): a table, build/bench.json, build/bench-growth.png
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.bench --repeats $(REPEATS) $(ARGS)

.PHONY: bench-kernel
bench-kernel: setup ## measure the admission kernel on one core: per message, remembered namespace and waiting row
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.kernel $(ARGS)

.PHONY: bench-planning
bench-planning: setup ## measure what an epoch costs the driver while 100,000 and 1,000,000 namespaces wait
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.planning --out build/bench-planning.json $(ARGS)

.PHONY: bench-peers
bench-peers: setup ## compare the kernel with other limiters on one stream (the JVM's need a JDK and Maven)
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.peers --out build/bench-peers.json $(ARGS)

.PHONY: bench-pace
bench-pace: setup ## compare a call of the pacer with other limiters inside a process, in one thread and in eight
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.pace --out build/bench-pace.json $(ARGS)

.PHONY: bench-pushback
bench-pushback: setup jars ## measure how a paced sink follows a server that changes its limit, and refuses everything for a while
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.pushback --out build/bench-pushback.json $(ARGS)

.PHONY: bench-paths
bench-paths: setup jars kafka-jars ## compare the job on every path that rows take with the same job without a throttle
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.paths --out build/bench-paths.json $(ARGS)

.PHONY: bench-overload
bench-overload: setup jars ## measure a batch with 0 to 5,000,000 waiting rows
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.overload --out build/bench-overload.json $(ARGS)

.PHONY: bench-growth
bench-growth: setup jars ## measure the job with growing numbers of rows and namespaces
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.growth --out build/bench-growth.json $(ARGS)

.PHONY: bench-metered
bench-metered: setup ## what metering costs a function of 10 us a row at 1,000 rows a call, in percent of its time: one line of JSON
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.metered --out build/bench-metered.json $(ARGS)

.PHONY: bench-time-quota
bench-time-quota: setup $(CLASS_ARCHIVE) ## two tenants with the same rows, one ten times as dear and limited to half a core: one line of JSON
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.time_quota --out build/bench-time-quota.json $(ARGS)

.PHONY: bench-division
bench-division: setup ## compare the policies that divide a quota between jobs: a table, build/bench-division.json
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.division $(ARGS)

.PHONY: scale
scale: setup ## measure the cost of sharing at PIP-82's scale and beyond: a table, build/scale.json
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.benchmarks.share_scale $(ARGS)

# ------------------------------------------------------------------------------------------------ checks

.PHONY: check
check: lint types imports ## run every static check: lint, types, imports

.PHONY: lint
lint: setup ## check style, format and spelling
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/codespell

.PHONY: format
format: setup ## format the code and apply safe fixes
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

.PHONY: types
types: setup ## check the types (mypy, strict)
	@$(VENV)/bin/mypy

.PHONY: imports
imports: setup ## check which package may import which (import-linter)
	@$(VENV)/bin/lint-imports

# ------------------------------------------------------------------------------------------------ the book

DOCS_VENV := build/docs-venv

.PHONY: docs
docs: $(DOCS_VENV)/.stamp ## build the book into build/docs/index.html; a broken link, anchor or reference fails
	@rm -rf build/docs
	@PYTHONPATH=$(CURDIR) $(DOCS_VENV)/bin/python -m sphinx -W --keep-going -q -d build/doctrees docs build/docs $(ARGS)
	@echo "the book is in build/docs/index.html"

# ------------------------------------------------------------------------------------------------ set-up

.PHONY: setup
setup: $(VENV)/.stamp ## create .venv with the pinned packages (again when pyproject.toml or requirements.lock changes)

# An environment of its own for each use: .venv holds the extra `dev`, build/docs-venv `docs`, and so on.
define environment
@[ -n "$(BASE_PYTHON)" ] || { echo "no Python 3.11 or newer found: install one, or set BASE_PYTHON=…" >&2; exit 1; }
@[ -x $(@D)/bin/python ] || $(BASE_PYTHON) -m venv $(@D)
@echo "setting up $(@D)"
@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[$(1)]'
@touch $@
endef

$(VENV)/.stamp: pyproject.toml requirements.lock
	$(call environment,dev)

build/%-venv/.stamp: pyproject.toml requirements.lock
	$(call environment,$*)

.PHONY: jars
jars: $(JARS)/delta.stamp ## fetch the Delta jars into build/jars

.PHONY: tool-jars
tool-jars: $(JARS)/pulsar-admin.stamp $(JARS)/kafka-broker.stamp ## fetch pulsar-admin, and kafka-configs with a broker, for tests

.PHONY: kafka-jars
kafka-jars: jars $(JARS)/kafka-connector.stamp $(JARS)/kafka-broker.stamp ## fetch the jars for `make kafka-test` and `make crash SOURCE=kafka`

.PHONY: s3a-jars
s3a-jars: jars $(JARS)/s3a.stamp ## fetch the jars for `make cluster-test`

# pyspark ships Ivy. scripts/jars/ivy.xml lists the jars by use; each use has its own directory.
$(JARS)/%.stamp: scripts/jars/ivy.xml | $(VENV)/.stamp
	@command -v java >/dev/null || { echo "no java found: install Java 17 or newer" >&2; exit 1; }
	@echo "fetching the jars of $*"
	@rm -rf $(JARS)/$*
	@mkdir -p $(JARS)/$*
	@java -jar $$($(PYTHON) -c 'import pathlib, pyspark; print(*pathlib.Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))') \
		-ivy scripts/jars/ivy.xml -confs $* -types jar bundle -warn \
		-retrieve '$(JARS)/[conf]/[artifact]-[revision](-[classifier]).[ext]' \
		> $(JARS)/$*/ivy.log 2>&1 || { cat $(JARS)/$*/ivy.log >&2; exit 1; }
	@touch $@

# The JVMs of tests start with Spark's classes already parsed and verified: 6 CPU seconds less each. With them comes
# build/local-files.jar, which spares a process for each file that Spark makes.
$(CLASS_ARCHIVE): $(VENV)/.stamp $(JARS)/delta.stamp tests/class_archive.py tests/LocalFiles.java
	@echo "making the class archive of the tests' JVMs"
	@$(PYTHON) -m tests.class_archive > build/class-archive.log 2>&1 || { cat build/class-archive.log >&2; exit 1; }

# Of the driver and the executors of the cluster bench.
build/cluster-classes.jsa: $(VENV)/.stamp $(JARS)/s3a.stamp $(CLUSTER_VENV)/.stamp tests/cluster/class_archive.py
	@echo "making the class archive of the cluster's JVMs"
	@$(PYTHON) -m tests.cluster.class_archive > build/cluster-classes.log 2>&1 || { cat build/cluster-classes.log >&2; exit 1; }

RELEASE_VENV := build/release-venv
WHEEL_VENV := build/wheel-venv

.PHONY: dist
dist: $(RELEASE_VENV)/.stamp ## build source distribution, wheel and SBOM into dist, and check them; TAG=v0.1.0 refuses what is no release
	@$(RELEASE_VENV)/bin/python scripts/dist.py $(TAG)

.PHONY: wheel-test
wheel-test: dist ## run a throttled query and the command line from the installed wheel, and check a program's types against it
	@cd $(WHEEL_VENV) && bin/spark-throttle --help > /dev/null && bin/python -I $(CURDIR)/scripts/first_query.py
	@$(RELEASE_VENV)/bin/python -m pip --python $(WHEEL_VENV)/bin/python install --quiet --disable-pip-version-check \
		--constraint requirements.lock mypy
	@cd $(WHEEL_VENV) && bin/mypy --strict --cache-dir .mypy_cache $(CURDIR)/scripts/first_query.py $(CURDIR)/scripts/typed_program.py

.PHONY: image-test
image-test: ## build the image with Buildah on a Debian from the package registry, as root, and run the job and a query in it
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || \
		apt-get install --yes --no-install-recommends buildah debootstrap
	@scripts/image_test.sh

.PHONY: lock
lock: ## regenerate requirements.lock from what pyproject.toml allows today
	@rm -rf build/lock
	@$(BASE_PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs,mutants,cluster,release]'
	@{ sed -n '/^#/p' requirements.lock; build/lock/bin/python -m pip freeze --exclude-editable; } > build/requirements.lock
	@mv build/requirements.lock requirements.lock
	@rm -rf build/lock

.PHONY: clean
clean: ## delete everything the other targets made, including .venv
	rm -rf $(VENV) build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
		spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
