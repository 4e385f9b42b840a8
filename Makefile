# dibs. `make demo` and `make test` set up what they need; both are safe to run twice.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help setup demo test soak lint bench fuzz mutants docs clean

help:
	@echo "make setup   a virtual environment in .venv with the command dibs in it"
	@echo "make demo    sets up, then runs the main job on simulated GPUs"
	@echo "make test    sets up, then lint, types, layers and all tests"
	@echo "make soak    the stress tests at full size: many clients, many kills, minutes each"
	@echo "make lint    ruff, mypy --strict, import-linter"
	@echo "make bench   measures, and prints ratios"
	@echo "make fuzz    the property tests with new seeds, for FUZZ_MINUTES (10)"
	@echo "make mutants puts faults into the code that decides and says which no test notices (MUTANT_MINUTES, MUTANT_SEED)"
	@echo "make docs    writes the generated pages of docs/ anew"
	@echo "make clean   removes .venv and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup
	@scripts/setup $(VENV)
	@touch $@

demo: $(STAMP)
	@scripts/demo $(BIN)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Most tests wait for other processes: more workers than cores are no loss.
WORKERS ?= 6

test: lint
	@scripts/test-needs $(BIN)/python
	@scripts/run-tests $(BIN) $(WORKERS) $(PYTEST_ARGS)

# What is smaller in an ordinary run, at full size: storms, kills at every point, all verbs on a real cluster.
SOAK := tests/stress tests/host/test_restarts.py tests/guest tests/cluster/test_node_driver.py tests/cluster/test_churn.py tests/cluster/test_kills.py tests/cluster/test_chart.py tests/cluster/test_nvidia.py tests/cluster/test_kinds.py tests/opensandbox tests/conformance tests/train/test_merge_differential.py tests/jobs/test_crash_points.py tests/cluster/test_train_differential.py tests/cluster/test_train_claims.py tests/kubeflow/test_cluster.py

soak: $(STAMP)
	@scripts/test-needs $(BIN)/python
	@$(BIN)/python -m tests.cluster.controllers jobset trainer helm nvidia-device-plugin nvidia-cdi-hook nvidia-dra
	DIBS_SOAK=1 $(BIN)/pytest -s $(SOAK) $(PYTEST_ARGS)

bench: $(STAMP)
	$(BIN)/python -m bench

fuzz: $(STAMP)
	@scripts/fuzz $(BIN)

mutants: $(STAMP)
	$(BIN)/python -m mutants $(MUTANTS)

docs: $(STAMP)
	$(BIN)/python scripts/generate_fields.py
	$(BIN)/python scripts/generate_docs.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
