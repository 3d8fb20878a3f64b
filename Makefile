# make demo and make test do all the set-up on a fresh Debian or Ubuntu machine that has Rust.

.PHONY: help demo test test-crash test-failover test-otel bench bench-settle bench-hostile bench-crowd lint build need-build need-redis need-postgres need-prometheus need-chromium

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: need-build need-redis ## Run a whole rain on three Redis nodes and show the result
	@echo "building (release; some minutes the first time)"
	@cargo build --release --quiet --workspace --bins
	@target/release/hongbao demo $(DEMO)

test: need-build need-redis need-postgres need-prometheus need-chromium ## Run all tests, on real Redis, PostgreSQL and Prometheus servers, in a real browser
	cargo test --workspace

test-crash: need-build need-redis ## Kill the real process at every crash point, finish the rain, audit; print the verdicts
	cargo test --features crash-points --test crash -- --nocapture

test-failover: need-build need-redis ## Cut, kill and promote nodes under load at each level of durability; print what was lost
	cargo test --features failover --test failover -- --nocapture --test-threads 1

test-otel: need-build need-redis need-postgres ## Build with traces, and look at what a collector gets
	cargo test --features otel --test otel
	cargo test --features otel --lib trace::

bench: need-build need-redis need-postgres ## Measure against baselines of the same run, about 5 minutes; one alone: make bench BENCH=B1
	@echo "building (release; some minutes the first time)"
	@cargo build --release --quiet --workspace --bins
	@target/release/hongbao-load bench --json target/bench.json $(BENCH)

bench-settle: need-build need-redis need-postgres ## Measure settlement, loading, auditing and splitting in one run
	cargo test --release --features bench --test bench -- --nocapture --test-threads 1

bench-hostile: need-build need-redis ## Measure what 3,000 hostile clients do to the p99 of 1,000 honest ones; CROWD=1000 ROUNDS=9
	@echo "building (release; some minutes the first time)"
	@cargo build --release --quiet --workspace --bins
	@CROWD=$(or $(CROWD),1000) ROUNDS=$(or $(ROUNDS),9) loadtest/hostile.sh

bench-crowd: need-build need-redis ## Measure the memory of as many idle sessions as wanted, over several gateways; SESSIONS=1000000 HOLD=60s PUSHES=10
	@echo "building (release; some minutes the first time)"
	@cargo build --release --quiet --workspace --bins
	@SESSIONS=$(or $(SESSIONS),100000) HOLD=$(or $(HOLD),30s) PUSHES=$(or $(PUSHES),0) loadtest/crowd.sh

lint: ## What CI checks besides the tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

build: need-build ## Build both programs in release mode
	cargo build --release --workspace --bins

need-build:
	@command -v cargo >/dev/null 2>&1 || { echo "cargo is missing: install Rust 1.95 or later first (rustup.rs)" >&2; exit 1; }
	@.ci/need cc gcc "the C compiler that SQLite and the linker need"

need-redis:
	@.ci/need redis-server redis-server "the nodes that hold the packets (version 7.0 or later)"

need-postgres:
	@.ci/need initdb postgresql "the production ledger, for the tests"

need-prometheus:
	@.ci/unpack prometheus "asks every question of the dashboards and alerts, in the tests" prometheus promtool

need-chromium:
	@.ci/chromium
