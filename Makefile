# The project's commands; `make help` lists them. They need Debian's python3, python3-venv and make; all else
# is installed into .venv.
# POSIX sh only: Debian's sh is dash.

PORT ?= 8000
# Debian's own Python first: it is compiled with PGO and LTO, and needs a tenth less CPU for a paced token
# than one that `pyenv install` compiles.
suits = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(shell for each in /usr/bin/python3 python3; do $$each -c '$(suits)' 2>/dev/null && \
	echo $$each; done) python3)
ARGS ?=

# With it, every process of a service or a test would compile its hundreds of modules again.
unexport PYTHONDONTWRITEBYTECODE
# Tests often wait for processes and timers, so one more runs at a time than there are cores.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $$(nproc) + 1)

.DEFAULT_GOAL := help
.PHONY: help run test test-slow by-hand mutations lint types contracts figures migrations test-postgres \
	test-rows test-crashes bench live lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

run: .venv/.base ## set up and run the service, first with a demo key (PORT=8000, ARGS="--web 2 --worker 4")
	@exec .venv/bin/python manage.py serve --port $(PORT) $(ARGS)

test: .venv/.test ## set up and run the tests (ARGS="-k ledger"): all but the slow ones
	@.venv/bin/pytest -n auto --dist loadgroup $(addprefix --ignore=,$(slow)) $(ARGS)

test-slow: .venv/.test ## the slow tests: faults, services, documents (SLOW=tests/chatapi/test_serve.py)
	@.venv/bin/pytest -n auto --dist loadgroup $(SLOW) $(ARGS)

slow = $(addprefix tests/bad_input/test_,openapi_fuzzing.py size.py tokenizer.py) \
	$(addprefix tests/bench/test_,hostile.py targets.py) \
	$(addprefix tests/chatapi/test_,allowed_ips_end_to_end.py canaries.py chaining.py chat_pings.py \
	client_certificates_end_to_end.py compose_commands.py credit_end_to_end.py curl.py doctor.py \
	every_protocol.py failover.py fallbacks.py \
	large_bodies.py logs.py one_line_errors.py page_weight.py payment_end_to_end.py presence.py \
	process_metrics.py prometheus.py protocol_seam.py rate_limits_end_to_end.py \
	refused_requests_end_to_end.py resume_rights.py revocation.py secret_canaries.py serve.py \
	serve_processes.py sign_up_twice.py stored_responses.py \
	tracing.py transport_seam.py upstream_keys_end_to_end.py watchdog.py without_tables.py) \
	$(addprefix tests/chatapi/web/test_,drain.py last_answer.py open_generations.py websocket.py) \
	$(addprefix tests/chatapi/worker/test_,openai_compatible_connections.py pool.py) \
	$(addprefix tests/faults/test_,broken_connections.py default_time_limits.py embeddings.py events.py \
	exhaustion.py failpoints.py fallbacks.py fleet.py followers.py hung_processes.py keys_after_faults.py \
	late_processes.py limits_after_faults.py locked_database.py looks.py lost_messages.py old_and_new.py \
	overlapping_faults.py payment.py protocols.py queue_classes.py reaper_in_every_worker.py \
	rolling_restart.py sentinel_failover.py several_stream_servers.py signals.py soak_hosts.py \
	statements.py surroundings.py valkey_death.py valkey_trouble.py web_death.py worker_death.py) \
	tests/clients/test_provisioning.py tests/test_deploy.py tests/test_docs.py tests/test_proxies.py \
	$(addprefix tests/usage/test_,backup.py cache_writes_migration.py interrupted_migrations.py \
	old_state.py retention_migration.py)
SLOW ?= $(slow)

.PHONY: slow-ones
slow-ones:
	@printf '%s\n' $(slow)

mutations: .venv/.test ## break the code on purpose, one way at a time, and see that a test notices
	@.ci/with-postgres .venv/bin/python -m tests.faults.mutations $(ARGS)

lint: .venv/.dev ## style, and deploy/kubernetes against its schemas
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/kubernetes-validate --strict --quiet -k 1.29 -k 1.37 deploy/kubernetes/*.yaml

types: .venv/.dev ## types
	@.venv/bin/mypy .

by-hand: ## follow docs/ on a bare Debian (needs root): upgrade, restore; ROUTE=services, ROUTE=machines
	@.ci/by_hand/run $(ROUTE)

contracts: .venv/.dev ## which package may import which
	@.venv/bin/lint-imports

figures: ## how plain the code is: sizes, functions used once, docstrings (a mirror, not a gate)
	@python3 .ci/figures.py

migrations: .venv/.base ## whether a model changed without its migration
	@.venv/bin/python manage.py makemigrations --check --dry-run

test-postgres: test-rows test-crashes ## the tests of what the database does, on PostgreSQLs of their own

test-rows: .venv/.test ## those of rows and transactions (ROWS_SEED=7: a draw of them, as in CI)
	@FAULTS=few .ci/with-postgres .venv/bin/pytest -n auto --dist loadgroup tests/accounts tests/usage \
		$(about_rows) $(ARGS)

test-crashes: .venv/.test ## those that crash, freeze and restart PostgreSQL
	@.ci/with-postgres .venv/bin/pytest -n 0 $(crashes) $(ARGS)

# These tests crash the whole server, so they do not share it with others.
crashes = tests/faults/test_postgres_trouble.py

# The end-to-end tests that depend on rows and transactions; of the failpoints, only those around commits
# (FAULTS=few).
about_rows = $(addprefix tests/faults/test_,failpoints.py web_death.py worker_death.py) \
	$(addprefix tests/chatapi/test_,admin.py api.py api_receipts.py budgets_end_to_end.py \
	cancel_and_later.py end_user_usage.py end_users.py exports_pages.py idempotency.py loadcatalog.py \
	management_people.py migrate.py organization_api.py rate_limits_end_to_end.py replica.py \
	stored_response_pages.py)

bench: .venv/.dev ## compare with other gateways (ARGS="--quick"); bench/README.md explains it
	@.venv/bin/python -m bench.compare $(ARGS)

live: .venv/.dev ## a real inference server with a tiny model, directly and through chatapi (installs PyTorch)
	@.venv/bin/python -m bench.live

# Each bigger set has the versions of the smaller one, so that the tests run with the versions in production.
lock: .venv/.dev ## compile requirements/*.in to hashed *.txt (ARGS="--upgrade")
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/base.in -o requirements/base.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) -c requirements/base.txt requirements/tracing.in \
		-o requirements/tracing.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) -c requirements/base.txt -c requirements/tracing.txt \
		requirements/payment.in -o requirements/payment.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) -c requirements/base.txt -c requirements/tracing.txt \
		-c requirements/payment.txt requirements/test.in -o requirements/test.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) -c requirements/test.txt requirements/dev.in \
		-o requirements/dev.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) --override requirements/live-overrides.txt \
		requirements/live.in -o requirements/live.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/clients.in -o requirements/clients.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/canaille.in -o requirements/canaille.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/agents.in -o requirements/agents.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/inspect.in -o requirements/inspect.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/vllm-router.in -o requirements/vllm-router.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/litellm.in -o requirements/litellm.txt
	@.venv/bin/uv pip compile $(compile) $(ARGS) requirements/uv.in -o requirements/uv.txt

compile = --quiet --generate-hashes --no-emit-index-url --python-version 3.11 \
	--custom-compile-command "make lock"

.PHONY: tracing
tracing: .venv/.base ## install OpenTelemetry, for traces (docs/tracing.md); repeat it after an upgrade
	@.venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes -r requirements/tracing.txt

.PHONY: payment
payment: .venv/.base ## install Stripe's package, for payments (docs/payment.md); repeat it after an upgrade
	@.venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes -r requirements/payment.txt

clean: ## remove .venv and caches; var/, the service's state, stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the virtualenv: base is in test is in dev

.venv/bin/uv: requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"chatapi needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/uv.txt
	@touch $@

.venv/.base: requirements/base.txt .venv/bin/uv
	@$(call install,base,test dev)

.venv/.test: requirements/test.txt .venv/bin/uv
	@$(call install,test,dev)

.venv/.dev: requirements/dev.txt .venv/bin/uv
	@$(call install,dev,)

# install(SET, BIGGER SETS) installs a set. If a bigger set is installed already, that one is updated instead,
# so that no package is removed.
define install
set=$(1); \
for bigger in $(2); do if [ -e .venv/.$$bigger ]; then set=$$bigger; fi; done; \
echo "Installing requirements/$$set.txt into .venv"; \
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements/$$set.txt && \
for smaller in base test dev; do touch .venv/.$$smaller; if [ $$smaller = $$set ]; then break; fi; done
endef

# ---- clients that are too heavy for `make test` (a browser, other versions of packages, more packages of
# npm), and gateways to compare with

.PHONY: test-clients
test-clients: .venv/clients/.installed .venv/canaille/.installed
test-clients: .venv/.dev ## the clients too heavy for `make test`, and pages in chromium-headless-shell
	@CHATAPI_BROWSER_TESTS=1 .venv/bin/pytest -n 2 --dist loadgroup $(heavy_clients) tests/browser $(ARGS)

heavy_clients = $(addprefix tests/clients/test_,ai_sdk.py browser.py langchain.py litellm.py \
	openai_python_2.py)

.PHONY: clients
clients: .venv/agents/.installed .venv/inspect/.installed
clients: .venv/.dev ## agents and frameworks: Codex CLI, Claude Code, LangChain, guidellm ... (installs 7 GB)
	@.venv/bin/pytest -n 0 -v tests/clients/test_agents.py tests/clients/test_ai_sdk.py $(ARGS)

in_their_own = clients canaille agents inspect vllm-router litellm
$(in_their_own:%=.venv/%/.installed): .venv/%/.installed: requirements/%.txt .venv/bin/uv
	@echo "Installing requirements/$*.txt into .venv/$*"
	@.venv/bin/uv venv --quiet --clear --python .venv/bin/python .venv/$*
	@.venv/bin/uv pip sync --quiet --python .venv/$*/bin/python --require-hashes requirements/$*.txt
	@touch $@

.PHONY: faults
faults: .venv/.test ## the tests of failures, with all failpoints: takes minutes (ARGS="-k settle")
	@FAULTS=all .venv/bin/pytest -n 2 --dist loadgroup tests/faults --ignore=$(crashes) $(ARGS)

.PHONY: rolling-update
rolling-update: .venv/.test ## upgrade from an earlier commit under load, and go back (PREVIOUS=COMMIT)
	@.ci/rolling_update $(PREVIOUS)
