# The commands of a newcomer are `make demo`, `make test-fast` and `make test`. Each sets up what it needs in a venv of its own.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export VIRTUAL_ENV := $(abspath $(VENV))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# For the pip that maturin runs, too. Errors are still printed.
export PIP_QUIET := 1

.PHONY: demo test test-fast test-rust test-python package bench lint format clean

demo: $(VENV)/release
	$(BIN)/quoth pull smollm2
	@cat examples/demo.txt
	@echo
	$(BIN)/quoth generate smollm2 --file examples/demo.txt --show-drafts
	@echo
	$(BIN)/quoth generate smollm2 --file examples/demo.txt --compare

# What developers run after each change: unit tests, and Python tests without a real model, other programs and long cases.
test-fast: package
	cargo test --workspace --lib --quiet
	$(BIN)/pytest -n auto -m "not (model or program or slow)"

test: test-rust test-python

test-rust:
	cargo test --workspace --quiet

test-python: package
	$(BIN)/quoth pull smollm2
	$(BIN)/pytest -n auto

# The package in the profile that tests use.
package: $(VENV)/tests
	$(BIN)/maturin develop --quiet
	@rm -f $(VENV)/release

bench: $(VENV)/release
	$(BIN)/quoth bench speed smollm2
	$(BIN)/quoth bench verify smollm2
	cargo bench -p quoth-benches

lint: $(VENV)/tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/tests
	cargo fmt --all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) target

$(VENV)/venv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --upgrade pip
	touch $@

# The optimised package, rebuilt when a source is newer.
$(VENV)/release: $(VENV)/venv pyproject.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)
	$(BIN)/pip install 'maturin>=1.9,<2'
	$(BIN)/maturin develop --release --quiet
	touch $@

$(VENV)/tests: $(VENV)/venv requirements-test.txt
	$(BIN)/pip install --requirement requirements-test.txt
	touch $@
