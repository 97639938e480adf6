# LCM. `make help` lists what can be made. Everything is set up inside the project, without root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
CARGO := cargo --locked

# etcd's client is generated at build time; the compiler for that comes with the virtual environment.
export PROTOC := $(BIN)/protoc
# The tests compare the fake etcd with a real one, which comes with the virtual environment too.
export LCM_ETCD_BIN := $(BIN)

.PHONY: help setup demo simulate controller test test-core test-rust test-python wheel prove soak lint deny format bench bench-quick bench-ready bench-core docs notebooks fake-cloud clean

help: ## Show this list
	@echo "Targets:"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | while IFS=$$'\t' read -r target text; do printf '  %-13s %s\n' "$$target" "$$text"; done

setup: $(VENV)/.ready ## Make the virtual environment with every tool the build and the tests need

$(VENV)/.ready: requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "LCM needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@command -v cargo > /dev/null || { echo "LCM needs Rust (cargo) on the PATH" >&2; exit 1; }
	@echo "Setting up .venv …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-dev.txt
	@touch $@

demo: setup ## Controllers keep a fleet honest on the embedded fake cloud (the first build takes minutes)
	@echo "Building the demo: minutes the first time, because the EC2 client is large, and seconds from then on."
	@$(CARGO) build --workspace --example demo
	@$(CARGO) run --quiet --example demo

simulate: ## A worker's life without any cloud: what would be decided, and why; builds in seconds
	@$(CARGO) run --quiet --package lcm-sdk --no-default-features --example simulate

test: lint test-core test-rust test-python ## Everything CI runs: lint, and all tests of Rust and Python

test-core: ## The pure core alone: no network, no runtime, seconds
	$(CARGO) test --package lcm-sdk --no-default-features

test-rust: setup ## All crates with all features (the first build takes minutes: the EC2 client is large)
	$(CARGO) test --workspace

test-python: setup ## The Python package, its wheel and its types, and the fake cloud under boto3, aws, virl2_client
	$(BIN)/maturin develop --locked --quiet
	$(CARGO) build --quiet --workspace --bins --examples
	$(BIN)/pytest
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist lcm-py/stubtest-allowlist.txt lcm
	$(BIN)/ruff check
	$(BIN)/ruff format --check

wheel: setup ## The wheel and the source distribution, ready to publish, in dist (takes many minutes the first time)
	$(BIN)/maturin build --release --out dist
	$(BIN)/maturin sdist --out dist

# Everything but the EC2 client, which the prover does not need and which takes minutes to build.
PROVER := $(CARGO) test --quiet --package lcm-sdk --no-default-features --features runtime --test prove --

# Each harness adds its rows to one table.
PROOF := $(CURDIR)/target/prove
prove: export LCM_PROVE_ROWS := $(PROOF)
prove: setup ## Break everything on purpose, for minutes: at every point, in a model, for real; prints one table of it all
	rm -rf $(PROOF) && mkdir -p $(PROOF)
	$(CARGO) test --workspace --quiet --test prove
	LCM_ETCD_ROUNDS=3 $(CARGO) test --workspace --quiet --test stories etcd_faults -- --nocapture
	LCM_KILLS=100 $(CARGO) test --workspace --quiet --test kills -- --nocapture
	$(CARGO) test --workspace --quiet --test fuzz
	@printf '\n| what | how much |\n|---|---|\n' && cat $(PROOF)/*.md

soak: ## The same with other dice for SECONDS=600; progress, then the table
	LCM_SOAK_SECONDS=$(or $(SECONDS),600) $(PROVER)

fake-cloud: ## Run a cloud on this machine, sixty times as fast; ARGS="--help" tells more (the first build takes minutes)
	@$(CARGO) build --profile program --package fake-cloud
	$(CARGO) run --quiet --profile program --package fake-cloud -- $(or $(ARGS),--clock x60)

controller: setup ## Run the worker controller on the environment; ARGS="--once --dry-run" shows what it would do
	$(CARGO) run --quiet --bin worker-controller -- $(ARGS)

lint: setup ## Formatting, clippy, documentation and licences, with warnings as errors
	$(BIN)/python tests/python/licences.py
	cargo fmt --all --check
	$(CARGO) clippy --package lcm-sdk --no-default-features --all-targets -- --deny warnings
	$(CARGO) clippy --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --workspace --no-deps --quiet

# Built once, from its own lock file; after that it takes seconds and no network.
DENY := $(CURDIR)/target/tools/bin/cargo-deny

deny: $(DENY) ## cargo-deny over all dependencies: licences, duplicates, sources (building it takes minutes, once)
	$(CARGO) fetch --quiet
	$(DENY) --offline --all-features check licenses bans sources

$(DENY):
	cargo install --quiet --locked --version 0.20.2 --root $(CURDIR)/target/tools cargo-deny

format: setup ## Put all code into shape
	cargo fmt --all
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The wheel as it is shipped, beside the one that is worked on; and what it is measured next to, beside all else.
BENCH := $(CURDIR)/target/bench
BENCH_PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps

$(BENCH)/peers/.ready: bench/requirements.txt $(VENV)/.ready
	@rm -rf $(BENCH)/peers
	@$(BENCH_PIP) --target $(BENCH)/peers --requirement bench/requirements.txt
	@touch $@

bench-ready: $(BENCH)/peers/.ready
	$(BIN)/maturin build --locked --release --out $(BENCH)/wheels
	@rm -rf $(BENCH)/site
	@$(BENCH_PIP) --target $(BENCH)/site $$(ls -t $(BENCH)/wheels/lcm-*.whl | head -n 1)
	$(CARGO) build --profile program --package fake-cloud

bench: bench-ready ## LCM next to what one would use instead (the first build takes many minutes); ARGS="--help" tells more
	PYTHONPATH=$(BENCH)/site $(BIN)/python bench/run.py $(ARGS)

bench-quick: bench-ready ## The same in two minutes, for a first impression
	PYTHONPATH=$(BENCH)/site $(BIN)/python bench/run.py --quick $(ARGS)

bench-core: ## What a decision costs in Rust, over a mixed fleet of 10,000 workers
	$(CARGO) bench --package lcm-sdk --no-default-features --bench decide

docs: ## The API documentation, in target/doc
	$(CARGO) doc --workspace --no-deps
	@echo "Open target/doc/lcm_sdk/index.html"

notebooks: setup ## Run the notebooks and write them as pages to target/notebooks
	$(BIN)/maturin develop --locked --quiet
	$(BIN)/jupyter-nbconvert --execute --to html --output-dir target/notebooks \
		--KernelManager.transport=ipc --KernelManager.ip="$$(mktemp -d)/kernel" notebooks/*.ipynb
	@echo "Open target/notebooks/01-lifecycle.html. To work in them: $(BIN)/pip install jupyterlab, then $(BIN)/jupyter-lab notebooks"

clean: ## Remove everything that was built or set up
	cargo clean
	rm -rf $(VENV) dist
