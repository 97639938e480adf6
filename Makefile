# LCM. `make help` lists the targets. Everything is set up inside the project, without root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
CARGO := cargo --locked

# The etcd client is generated at build time; the protobuf compiler comes with the virtual environment.
export PROTOC := $(BIN)/protoc
# Tests compare the fake etcd with a real one, which comes with the virtual environment too.
export LCM_ETCD_BIN := $(BIN)

# Incremental data would add 4 GB to `target` and is of no use to a first build. CARGO_INCREMENTAL=1 turns it on.
export CARGO_INCREMENTAL ?= 0

# The dependency features of `cargo test --workspace`, so that no dependency is compiled twice.
TEST_BUILD := --features lcm-py/test-build
DEVELOP := $(BIN)/maturin develop --locked --quiet --features test-build

.PHONY: help setup demo simulate controller test test-lifecycle test-rust test-python test-peers chromium package wheel programs test-dist prove soak lint features deny mutants mutants-list format bench bench-quick bench-ready bench-lifecycle docs site screenshots notebooks fake-cloud clean

help: ## Show this list
	@echo "Targets:"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | while IFS=$$'\t' read -r target text; do printf '  %-13s %s\n' "$$target" "$$text"; done

setup: $(VENV)/.ready ## Create the virtual environment with all tools of the build and the tests

$(VENV)/.ready: requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "LCM needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@command -v cargo > /dev/null || { echo "LCM needs Rust (cargo) on the PATH" >&2; exit 1; }
	@echo "Setting up .venv …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-dev.txt
	@touch $@

demo: setup ## Run controllers on the embedded fake cloud under faults (the first build takes minutes)
	@echo "Building the demo: minutes the first time, because the EC2 client is large, seconds afterwards."
	@$(CARGO) build --workspace --example demo
	@$(CARGO) run --quiet --example demo

simulate: ## Print a worker's life decision by decision, without a cloud; builds in seconds
	@$(CARGO) run --quiet --package lcm-sdk --no-default-features --example simulate

test: lint test-lifecycle test-rust test-python ## Run all checks of CI: lint, and all Rust and Python tests

test-lifecycle: ## Test the pure lifecycle in seconds, without network or runtime
	$(CARGO) test --package lcm-sdk --no-default-features

test-rust: setup ## Test all crates with all features (the first build takes minutes: the EC2 client is large)
	$(CARGO) test --workspace

test-python: setup ## Test the Python package, its wheel and types, and the fake cloud with boto3, aws and virl2_client
	$(DEVELOP)
	$(CARGO) build --quiet --workspace --bins --examples
	@[ -n "$${LCM_CHROMIUM:-}" ] || command -v chromium chromium-browser google-chrome > /dev/null || { \
		echo "No Chromium on the PATH: the browser tests need it. apt-get install chromium or make chromium brings it." >&2; \
		[ "$${CI:-}" != true ]; }
	$(BIN)/pytest --numprocesses 2 --dist loadfile
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml lcm
	$(BIN)/ruff check
	$(BIN)/ruff format --check

test-peers: setup ## Run other people's suites and clients on the fakes: etcd, moto, virl2_client (downloads packages)
	$(CARGO) build --quiet --package fake-cloud --bin fake-cloud --example lab
	$(BIN)/python tests/peers/etcd.py
	$(BIN)/python tests/peers/cml.py
	$(BIN)/python tests/peers/aws.py

chromium: setup ## Install a Chromium for the browser tests where the system has none, and print the variable to export
	@$(BIN)/playwright install --with-deps chromium >&2
	@$(BIN)/python -c 'from playwright.sync_api import sync_playwright as p; print("LCM_CHROMIUM=" + p().start().chromium.executable_path)'

# Twine is a tool of its own, because its dependencies are many.
TWINE := $(CURDIR)/target/tools/twine

$(TWINE)/bin/twine:
	$(PYTHON) -m venv $(TWINE)
	$(TWINE)/bin/pip install --quiet --disable-pip-version-check twine==7.0.0

# Without a build of the crates, which `make test` has compiled.
package: setup $(TWINE)/bin/twine ## Pack the crates and the source distribution, and check their metadata
	$(CARGO) package --no-verify --package lcm-console --package fake-cloud --package lcm-sdk --package lcm-cli
	$(BIN)/maturin sdist --out dist
	$(TWINE)/bin/twine check --strict dist/*.tar.gz

# Zig is a C compiler with the headers and symbols of old versions of glibc, so that the wheel runs on systems that are
# older than this one. Both are tools of their own, because only the packages need them.
DIST_TOOLS := $(CURDIR)/target/tools/dist

$(DIST_TOOLS)/.ready:
	$(PYTHON) -m venv $(DIST_TOOLS)
	$(DIST_TOOLS)/bin/pip install --quiet --disable-pip-version-check auditwheel==6.8.2 ziglang==0.17.0
	@touch $@

# On Linux with glibc, the oldest version that Rust supports. Elsewhere maturin selects the tag of the system.
HOST := $(shell rustc -vV 2> /dev/null | sed -n 's/^host: //p')
MANYLINUX := $(if $(filter %-linux-gnu,$(HOST)),--zig --target $(HOST) --compatibility manylinux2014)

wheel: setup $(DIST_TOOLS)/.ready ## Build the wheel and the source distribution in dist (the first build takes many minutes)
	rm -f dist/*.whl dist/*.tar.gz
	PATH=$(DIST_TOOLS)/bin:$$PATH $(BIN)/maturin build --locked --release --strip $(MANYLINUX) --out dist
	$(BIN)/maturin sdist --out dist

# Only the last step of a build is told to link statically, so the dependencies are those of every release build here.
STATIC := -C target-feature=+crt-static -C strip=symbols

programs: setup ## Build lcm, worker-controller and fake-cloud as static files in dist/bin (the first build takes many minutes)
	mkdir -p dist/bin dist/tmp
	$(CARGO) rustc --release --package lcm-cli --bin lcm -- $(STATIC)
	$(CARGO) rustc --release --package lcm-cli --bin worker-controller -- $(STATIC)
	$(CARGO) rustc --release --package fake-cloud --bin fake-cloud -- $(STATIC)
	install -m 755 target/release/lcm target/release/worker-controller target/release/fake-cloud dist/bin
	install -m 644 "$$($(BIN)/python -m certifi)" dist/ca-certificates.crt
	@ls -l dist/bin

test-dist: wheel programs $(TWINE)/bin/twine ## Build wheel and programs, and use them without cargo: quick start, pytest plugin, fake cloud, container
	$(TWINE)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	@command -v podman buildah > /dev/null || echo "Neither podman nor buildah is on the PATH: the container is not built."
	$(BIN)/pytest tests/dist

# Without the EC2 client, which the prover does not need and which takes minutes to build.
PROVER := $(CARGO) test --quiet --package lcm-sdk --no-default-features --features runtime --test prove --

# Each suite appends its rows to one table.
PROOF := $(CURDIR)/target/prove
prove: export LCM_PROVE_ROWS := $(PROOF)
prove: setup ## Try to break every guarantee, for minutes: simulator, models, real etcd, kills, fuzzing; prints a table
	rm -rf $(PROOF) && mkdir -p $(PROOF)
	$(CARGO) test --workspace --quiet --test prove
	LCM_ETCD_ROUNDS=3 $(CARGO) test --workspace --quiet --test stories etcd_faults -- --nocapture
	LCM_KILLS=100 $(CARGO) test --workspace --quiet --test crash -- --nocapture
	$(CARGO) test --workspace --quiet --test fuzz
	@printf '\n| measure | value |\n|---|---|\n' && cat $(PROOF)/*.md

# Optimized. The sums of all runs, by kind of history, are kept in a file, and a run continues after the last seed.
soak: ## Run the simulator with other seeds for SECONDS=600, optimized; adds up all runs in target/soak.json
	LCM_SOAK_SECONDS=$(or $(SECONDS),600) LCM_SOAK_STATE=$(or $(LCM_SOAK_STATE),$(CURDIR)/target/soak.json) \
		$(subst $(CARGO) test,$(CARGO) test --release,$(PROVER))

fake-cloud: ## Run the fake cloud, sixty times as fast; ARGS="--help" lists the options (the first build takes minutes)
	@$(CARGO) build --profile program --package fake-cloud
	$(CARGO) run --quiet --profile program --package fake-cloud -- $(or $(ARGS),--clock x60)

controller: setup ## Run the worker controller with settings from the environment; ARGS="--once --dry-run" prints a plan
	$(CARGO) run --quiet --bin worker-controller -- $(ARGS)

lint: setup features ## Check formatting, clippy, documentation and licenses, with warnings as errors
	$(BIN)/python tests/python/licenses.py
	cargo fmt --all --check
	$(CARGO) clippy --package lcm-sdk --no-default-features --all-targets -- --deny warnings
	$(CARGO) clippy --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --workspace --no-deps --quiet $(TEST_BUILD)

# `lint` checks all features together. The features that need no AWS client are checked alone here; with `aws`, each
# selection would compile the EC2 client again.
FEATURES := runtime conformance testing etcd cml control-plane admin logging otel

features: setup ## Check lcm-sdk with each feature alone, except those that need the AWS client
	$(CARGO) clippy --quiet --package lcm-sdk --no-default-features --lib -- --deny warnings
	@for feature in $(FEATURES); do \
		echo "lcm-sdk with $$feature"; \
		$(CARGO) clippy --quiet --package lcm-sdk --no-default-features --features $$feature --lib -- --deny warnings; \
	done

# Built once, from its own lock file; later runs take seconds and no network.
DENY := $(CURDIR)/target/tools/bin/cargo-deny

deny: $(DENY) ## Check licenses, duplicates and sources of all dependencies with cargo-deny (its build takes minutes)
	$(CARGO) fetch --quiet
	$(DENY) --offline --all-features check licenses bans sources

$(DENY):
	cargo install --quiet --locked --version 0.20.2 --root $(CURDIR)/target/tools cargo-deny

# Built once, as cargo-deny is.
MUTANTS_TOOL := $(CURDIR)/target/tools/bin/cargo-mutants

# The fastest tests that cover each module. A mutant builds faster incrementally and without debug information.
MUTANTS := CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0 $(MUTANTS_TOOL) mutants --package lcm-sdk --no-default-features --iterate
MUTANTS_LIFECYCLE := $(MUTANTS) --output target/mutants/lifecycle --file 'lcm-sdk/src/lifecycle/**'
MUTANTS_QUEUE := $(MUTANTS) --output target/mutants/queue --features runtime --file 'lcm-sdk/src/controller/queue/**'

# The tests of the lifecycle that take longer than a second. `make mutants MUTANTS_SKIP=` tries the changes that the
# others missed with these as well.
MUTANTS_SKIP := --skip convergence --skip properties --skip graph

# `--iterate` leaves out mutants that an earlier run caught, so a run can be interrupted and continued.
mutants: $(MUTANTS_TOOL) ## Change the lifecycle and the queue in every small way and list the changes that no test notices (hours)
	mkdir -p target/mutants/lifecycle target/mutants/queue
	@status=0; \
		$(MUTANTS_QUEUE) $(ARGS) -- --lib controller::queue || status=$$?; \
		$(MUTANTS_LIFECYCLE) $(ARGS) -- --lib --test lifecycle -- $(MUTANTS_SKIP) || status=$$?; \
		exit $$status

mutants-list: $(MUTANTS_TOOL) ## List the changes that `make mutants` tries
	@mkdir -p target/mutants/lifecycle target/mutants/queue
	@$(MUTANTS_QUEUE) --list
	@$(MUTANTS_LIFECYCLE) --list

$(MUTANTS_TOOL):
	cargo install --quiet --locked --version 27.1.0 --root $(CURDIR)/target/tools cargo-mutants

format: setup ## Format all code
	cargo fmt --all
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The release wheel and the alternatives, each in a directory of its own.
BENCH := $(CURDIR)/target/bench
BENCH_PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps

$(BENCH)/peers/.ready: bench/requirements.txt $(VENV)/.ready
	@rm -rf $(BENCH)/peers
	@$(BENCH_PIP) --target $(BENCH)/peers --requirement bench/requirements.txt
	@touch $@

bench-ready: $(BENCH)/peers/.ready
	$(BIN)/maturin build --locked --release --out $(BENCH)/wheels
	@rm -rf $(BENCH)/site
	@$(BENCH_PIP) --target $(BENCH)/site $$(ls -t $(BENCH)/wheels/lcm_sdk-*.whl | head -n 1)
	$(CARGO) build --profile program --package fake-cloud

bench: bench-ready ## Compare LCM with its alternatives (the first build takes many minutes); ARGS="--help" lists benchmarks
	PYTHONPATH=$(BENCH)/site $(BIN)/python bench/run.py $(ARGS)

bench-quick: bench-ready ## Compare in two minutes, with fewer turns; writes no files
	PYTHONPATH=$(BENCH)/site $(BIN)/python bench/run.py --quick $(ARGS)

bench-lifecycle: ## Measure the cost of a decision in Rust, over a mixed fleet of 10,000 workers
	$(CARGO) bench --package lcm-sdk --no-default-features --bench decide

docs: ## Build the API documentation in target/doc
	$(CARGO) doc --workspace --no-deps $(TEST_BUILD)
	@echo "The documentation of the crates is in target/doc/lcm_sdk/index.html"

# With warnings as errors: unknown links, unknown anchors, and pages outside of the navigation.
site: setup docs ## Build the documentation site in target/site, with the API documentation of the crates
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file site/mkdocs.yml
	cp -R target/doc target/site/rust
	@echo "Open target/site/index.html, or serve it: $(BIN)/mkdocs serve --config-file site/mkdocs.yml"

screenshots: setup ## Take the screenshots in docs/images again: consoles, command and notebooks
	$(DEVELOP)
	$(BIN)/python site/screenshots.py

notebooks: setup ## Run the notebooks and write pages to target/notebooks
	$(DEVELOP)
	$(BIN)/jupyter-nbconvert --execute --to html --output-dir target/notebooks \
		--KernelManager.transport=ipc --KernelManager.ip="$$(mktemp -d)/kernel" notebooks/*.ipynb
	@echo "Open target/notebooks/01-lifecycle.html. To work in them: $(BIN)/pip install jupyterlab, then $(BIN)/jupyter-lab notebooks"

clean: ## Remove all builds and the virtual environment
	cargo clean
	rm -rf $(VENV) dist
