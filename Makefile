# `make demo` and `make test` set up everything they need; the rest are their parts.

PYTHON  ?=
# Test processes, each with servers of its own. Most tests wait for a process or a server, so more of them than cores are
# faster.
WORKERS ?= 4
ARGS    ?=
PART    ?=

BIN      := .venv/bin
READY    := .venv/.ready
COMPILED := .venv/.compiled

.DEFAULT_GOAL := help
.PHONY: help demo test bench chaos checks lint format types mypy pyright layers unit golden lock servers clean

help: ## what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY) ## sync 50,000 simulated diamonds, kill a worker, compare with the truth (SQLite, no server)
	$(BIN)/stepfast demo $(ARGS)

test: ## everything CI asks for
	@$(MAKE) --no-print-directory --jobs=2 checks
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

checks: servers lint $(COMPILED) types layers # side by side: each of them keeps one core busy, or waits for a download

bench: $(READY) servers ## measure, with durable servers
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(READY) servers ## the tests with every crash point, and the soak; PART=2/12: a part of them, resumed
	$(BIN)/pytest tests --chaos --timeout=1800 $(if $(PART),--part $(PART) --resume) $(ARGS)

lint: $(READY) ## ruff: format and rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: mypy pyright ## mypy --strict; what pyright makes of the public API

mypy: $(READY)
	$(BIN)/mypy

pyright: $(READY)
	$(BIN)/basedpyright

layers: $(READY) ## imports go downwards only
	$(BIN)/lint-imports

unit: $(READY) ## the tests that need no database
	$(BIN)/pytest tests/unit $(ARGS)

format: $(READY) ## rewrite the sources as ruff wants them
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

golden: $(READY) servers ## rewrite the files under tests/golden from what the code says now
	$(BIN)/pytest -m golden --update-golden $(ARGS)

lock: ## newest versions of everything into requirements/dev.txt
	PYTHON="$(PYTHON)" scripts/lock

servers: ## install PostgreSQL, PgBouncer, MariaDB, Azurite and the SDK for JavaScript if they are missing
	@scripts/install-servers

clean: ## forget everything that make made
	rm -rf .venv dist packages/*/dist packages/*/build tests/*/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): $(wildcard packages/*/pyproject.toml) requirements/dev.txt scripts/install-environment
	PYTHON="$(PYTHON)" scripts/install-environment
	@touch $@

# Once, beside mypy: otherwise each of the test processes compiles all tests by itself, in 13 s. What fails here, they tell.
$(COMPILED): $(READY)
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true
	@touch $@
