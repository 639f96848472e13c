# flowsched: `make demo` and `make test` need nothing but Python 3.11 or later.
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# Twice the two cores this is meant for: many tests wait for processes and for leases. Eight take as long, and have an API server each.
PYTEST_WORKERS ?= 4
# Tests start hundreds of processes. Without bytecode each compiles a thousand modules: 2.2 s of CPU instead of 0.8 s.
unexport PYTHONDONTWRITEBYTECODE
SPARK ?= $(HOME)/.cache/flowsched/spark

TRACES ?=
MINUTES ?= 5
SEED ?= 1

.PHONY: help demo demo-kubernetes kube-built test lint check bench bench-kube bench-pains soak blackbox crash-test kube-assets kube-node promtool kube-test kube-faults spark-test images docs lock lower-bounds notebooks clients engines postgres ui browser format schema clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("flowsched needs Python 3.11 or later, found " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/demo: pyproject.toml | $(VENV)/bin/python
	@echo "installing flowsched into $(VENV), a minute or two …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[genomics]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: pyproject.toml | $(VENV)/bin/python
	@echo "installing flowsched and its test tools into $(VENV), a few minutes …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[genomics,kubernetes,mpi,notebook,objectstore,otel,postgresql,test,wdl]'
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/demo

$(STAMPS)/docs: pyproject.toml | $(VENV)/bin/python
	@echo "installing mkdocs into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@mkdir -p $(STAMPS) && touch $@

notebooks: $(STAMPS)/test ## run docs/notebooks on a service of their own and keep what they show
	$(BIN)/python -m tests.serving.tutorials

demo: $(STAMPS)/demo ## real genomics and gang training on three virtual nodes, on this machine
	@$(BIN)/flowsched demo

demo-kubernetes: kube-built $(STAMPS)/test ## real samtools and a gang on two real nodes (after make kube-node); without root on hollow ones (after make kube-assets)
	@$(BIN)/python -m tests.kubernetes.nodes.demo

# Before the tests' packages are installed, which takes minutes.
kube-built:
	@for each in "$$TEST_ASSET_KUBE_APISERVER" "$$KUBEBUILDER_ASSETS/kube-apiserver" "$$(command -v kube-apiserver)" \
		"$${XDG_CACHE_HOME:-$$HOME/.cache}/flowsched/kube/bin/kube-apiserver"; do if [ -x "$$each" ]; then exit 0; fi; done; \
		echo "error: no kube-apiserver for a cluster: run 'make kube-node' (real nodes; Linux, root) or 'make kube-assets' (hollow ones) first" >&2; exit 2

lint: $(STAMPS)/test ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if [ -d flowsched/web/ui/node_modules ]; then $(BIN)/python hatch_build.py check; else echo "types of the web page: not checked, make ui has not run here"; fi

ui: $(VENV)/bin/python ## build the web page into flowsched/web/dist (fetches Node from PyPI where there is none; a second when nothing changed)
	@$(BIN)/python hatch_build.py

browser: ## install Debian's chromium for the tests of the web page, if there is no browser
	sh tests/tools/install_browser.sh

# In a fresh clone each worker would compile all modules for itself.
test: lint ui ## everything that proves it: lint, types, contracts, tests
	@$(BIN)/python -m compileall -q -j 2 flowsched
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile

QUICK := -n $(PYTEST_WORKERS) --dist loadfile -m "not slow and not soak and not postgresql and not kubernetes" \
	tests/house tests/workflow tests/scheduling tests/engine tests/simulation tests/control tests/client
check: ## what needs no service, in two minutes; or one folder: make check T=tests/cli
	$(BIN)/python -m pytest -q $(or $(T),$(QUICK))

crash-test: $(STAMPS)/test ## 100 kill -9 of the real service on each database
	FLOWSCHED_KILLS=100 $(BIN)/python -m pytest tests/crash -s --timeout 3000

bench: $(STAMPS)/test ## the current figures in one table, each beside a baseline of the same run (10 minutes on two quiet cores; Linux)
	$(BIN)/python bench/figures.py

bench-kube: $(STAMPS)/test ## pods bound per second: ours, kube-scheduler, Volcano, a raw loop; a million tasks; restarts
	$(BIN)/python bench/kube/run.py
	$(BIN)/python bench/kube/backlog.py
	$(BIN)/python bench/kube/restart.py

bench-pains: $(STAMPS)/test ## deadlocks, starving, staggering, Spark, shared disks: kube-like against flowsched
	$(BIN)/python -m bench.pains
	$(BIN)/python -m bench.pains_real
	$(BIN)/python -m bench.spark
	$(BIN)/python -m bench.io

soak: $(STAMPS)/test ## many seeds of the random worlds, every two of eight faults of a cluster, then traces while the service is killed: make soak TRACES="a.json b.json.gz" MINUTES=5
	FLOWSCHED_SOAK=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m soak --timeout 3000
	$(BIN)/python -m bench.soak --minutes $(MINUTES) $(TRACES)

blackbox: $(STAMPS)/test ## strangers, faults and a judge, on each database: make blackbox MINUTES=60 SEED=1 (Linux, root)
	$(BIN)/python -m bench.blackbox --database sqlite --minutes $(MINUTES) --seed $(SEED)
	$(BIN)/python -m bench.blackbox --database postgresql --minutes $(MINUTES) --seed $(SEED)

kube-assets: ## build etcd, kube-apiserver, kube-scheduler, kubectl, helm for the tests (needs Go; minutes the first time)
	sh tests/tools/install_kube.sh

kube-node: ui ## build kubelet, kube-proxy, containerd, CoreDNS and the images for real nodes (Linux, root; needs Go; minutes the first time)
	sh tests/tools/install_nodes.sh

promtool: ## build Prometheus' promtool for the tests of the alert rules (needs Go; 2 minutes the first time)
	sh tests/tools/install_promtool.sh

kube-test: $(STAMPS)/test ## all tests on a real API server; a missing one is a failure
	FLOWSCHED_REQUIRE_KUBE=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile tests/kubernetes tests/deploy

kube-faults: $(STAMPS)/test ## every fault on real nodes, the long ones too (Linux, root; half an hour)
	FLOWSCHED_SOAK=1 FLOWSCHED_REQUIRE_NODES=1 $(BIN)/python -m pytest tests/kubernetes/nodes

spark-test: $(STAMPS)/test ## Spark's own client on a real API server (fetches pyspark, 450 MB; needs Java)
	test -x $(SPARK)/bin/spark-submit || { $(PYTHON) -m venv $(SPARK) && $(SPARK)/bin/python -m pip install --quiet pyspark==4.3.0; }
	FLOWSCHED_SPARK_PYTHON=$(SPARK)/bin/python FLOWSCHED_REQUIRE_KUBE=1 $(BIN)/python -m pytest tests/kubernetes/spark

images: ui ## build the container images of the tests: samtools, numpy, flowsched's own (needs buildah and mmdebstrap)
	sh tests/tools/install_images.sh

clients: $(VENV)/bin/python ## install the real TES clients of the tests: py-tes, pydantic-tes, Snakemake 9, Toil 7, cwl-tes (2 minutes the first time)
	PYTHON=$(BIN)/python sh tests/tools/install_clients.sh

engines: ## install the engines that take too long for CI: Sprocket (needs cargo; half an hour), Nextflow (needs Maven, Java 17)
	sh tests/tools/install_engines.sh

postgres: ## install a PostgreSQL server for the tests, if there is none (Debian, Ubuntu)
	sh tests/tools/install_postgres.sh

format: $(STAMPS)/test ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LOCK := uv pip compile -q --generate-hashes --python-version 3.11 --python-platform linux --exclude-newer '7 days' --no-annotate --no-header
lock: ## write deploy/requirements*.txt (the image, by hash) and constraints.txt (development) anew, nothing younger than a week (needs uv)
	$(LOCK) pyproject.toml --extra kubernetes --extra objectstore --extra otel --extra postgresql --extra wdl -o deploy/requirements.txt
	echo hatchling | $(LOCK) - -o deploy/requirements-build.txt
	uv pip compile -q --universal --python-version 3.11 --exclude-newer '7 days' --no-annotate --no-header --all-extras pyproject.toml -o constraints.txt

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMPS)/docs ## the documentation as a site in build/site; a link that leads nowhere is a failure
	$(BIN)/python -m mkdocs build --quiet --clean

lower-bounds: ## the oldest dependencies that pyproject.toml allows, the size of the base install, the wheel alone (3 minutes)
	PYTHON=$(PYTHON) sh tests/tools/check_install.sh

schema: $(STAMPS)/test ## write the published JSON Schema anew
	@mkdir -p build
	$(BIN)/python -m flowsched.workflow.document.schema > build/schema.json && mv build/schema.json flowsched/workflow/workflow.schema.json

clean: ## remove what tests and tools left behind, and the web page that `make ui` built
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist flowsched/web/dist flowsched/web/ui/node_modules
