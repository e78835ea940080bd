# On a fresh machine, with nothing before it: `make run` or `make test`. Called again, each does
# only what is missing. `make` alone prints what there is.
#
#   PYTHON=python3.12   which Python makes the environment (default: the first one that fits)
#   TORCH='...'         what pip installs first, for a torch other than your index's newest

PYTHON ?=
TORCH ?=

CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
INSTALLED := .venv/.installed
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help run test check environment

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

run: $(INSTALLED)  ## run FedADB on scikit-learn's digits and write a page about the run
	@done=$$(grep -ls '"status": "completed"' results/digits*/summary.json | head -n 1); \
	if [ -n "$$done" ]; then \
	  folder=$${done%/summary.json}; \
	  echo "FedADB has run on the digits already; remove results/ to run it again."; \
	  echo "results: $(CURDIR)/$$folder"; \
	else \
	  folder=results/digits; \
	  [ ! -e $$folder ] || folder=results/digits-$$(date +%Y%m%d-%H%M%S); \
	  echo "FedADB on scikit-learn's digits: 2 clients, 20 rounds, about a minute."; \
	  fedadb run -c "output-dir=\"$(CURDIR)/results\" run-name=\"$${folder#results/}\"" || exit 1; \
	fi; \
	if [ -e $$folder/report.html ]; then echo "report: $(CURDIR)/$$folder/report.html"; \
	else fedadb report $$folder; fi

test: $(INSTALLED)  ## run the tests
	@pytest -n 2

check: $(INSTALLED)  ## look at format, types and who imports whom
	ruff check .
	ruff format --check .
	mypy
	lint-imports

environment: $(INSTALLED)  ## make .venv and install into it, nothing else

$(INSTALLED): pyproject.toml
	@for python in $(CANDIDATES); do \
	  [ -x .venv/bin/python ] && break; \
	  "$$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
	    2>/dev/null || continue; \
	  echo "Making the environment .venv with $$("$$python" --version)."; \
	  "$$python" -m venv .venv || exit 1; \
	done; \
	[ -x .venv/bin/python ] || { \
	  echo "error: no Python from 3.11 to 3.14 with venv among: $(CANDIDATES). Install one (Debian," \
	    "Ubuntu: apt install python3-venv) or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(if $(TORCH),.venv/bin/python -m pip install $(TORCH))
	.venv/bin/python -m pip install -e ".[dev]"
	@touch $@
