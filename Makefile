# kleash: three commands first: make demo, make test, make check.
# One thread a process: the targets run processes side by side, and threads that contend for cores are far slower.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
CODE := src tests tools benchmarks examples
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help demo test trl browser screenshots notebook check lint docs site clean fixtures fixtures-check tiny tiny-report zoo \
	bench bench-demo bench-trl bench-judge bench-gpu

help:
	@echo "make demo         the leash seen: the tiny model trained without it and with it"
	@echo "make test         the whole test suite"
	@echo "make trl          kleash inside TRL, and on W&B and trackio: in an environment that has them"
	@echo "make browser      the pages in headless Chromium (from the system's packages if it is missing)"
	@echo "make notebook     run the notebook; make notebook WRITE=--write keeps what came out"
	@echo "make check        lint, types, import direction and the fast tests"
	@echo "make docs         write the generated pages and tables of docs again"
	@echo "make fixtures     other trainers' logs, written by their own code again; make fixtures-check compares two"
	@echo "make site         the documentation as a site in build/site, links checked"
	@echo "make tiny         train the embedded tiny model again; make tiny-report judges it"
	@echo "make zoo          over 50 architectures against their own logits: docs/runs/zoo.md"
	@echo "make bench-gpu    on a machine with a GPU: what is checked and timed there, as one table"
	@echo "make bench-NAME   a table of docs/runs: any program of benchmarks/, with - for _"

$(VENV)/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("kleash needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.run
	$(BIN)/kleash demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS)

browser: $(VENV)/.dev
	@command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -qqy --no-install-recommends chromium-headless-shell; } || \
		{ echo "no Chromium here, and none to be had: install one, or name it in KLEASH_CHROMIUM"; exit 2; }
	$(BIN)/python -m pytest tests/browser

screenshots: $(VENV)/.dev
	$(BIN)/python -m tools.screenshots

$(VENV)/.notebook: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[notebook]'
	touch $@

notebook: $(VENV)/.notebook
	$(BIN)/python -m tools.run_notebook $(WRITE)

lint: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint
	$(BIN)/python -m pytest -n $(JOBS) -q -m "not slow and not network"

docs: $(VENV)/.dev
	$(BIN)/python tools/make_metrics_doc.py
	$(BIN)/python tools/make_equations_doc.py
	$(BIN)/python tools/make_watch_logs_doc.py
	$(BIN)/python tools/make_check_doc.py

fixtures: $(VENV)/.dev
	$(BIN)/python tools/make_fixtures.py

# The site's builder is in an environment of its own: it needs none of kleash's packages.
$(VENV)-site/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python -m pip install --quiet -c constraints.txt zensical 'mkdocstrings[python]'
	touch $@

site: $(VENV)-site/.run
	$(VENV)-site/bin/zensical build --strict

tiny: $(VENV)/.dev
	$(BIN)/python tools/build_tiny.py

tiny-report: $(VENV)/.dev
	$(BIN)/python tools/tiny_report.py

zoo: $(VENV)/.dev
	$(BIN)/python -m tools.zoo

bench: bench-estimators bench-controllers bench-fused

bench-%: $(VENV)/.dev
	$(BIN)/python -m benchmarks.$(subst -,_,$*)

bench-demo: $(VENV)/.dev
	$(BIN)/python -m benchmarks.demo_seeds

# TRL lives in an environment of its own, with the same torch.
$(VENV)-bench/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet -c constraints.txt -e . 'trl==1.16.*'
	touch $@

bench-trl: $(VENV)-bench/.run
	$(VENV)-bench/bin/python -m benchmarks.trl

# kleash as a guest in TRL's own trainers, in real runs.
$(VENV)-bench/.test: $(VENV)-bench/.run
	$(VENV)-bench/bin/python -m pip install --quiet -c constraints.txt -e '.[tensorboard,wandb,trackio]' \
		pytest hypothesis beartype mpmath scipy
	touch $@

trl: $(VENV)-bench/.test
	$(VENV)-bench/bin/python -m pytest -q tests/plug
	$(VENV)-bench/bin/python -m pytest -q tests/training/test_boards.py  # by itself: trackio looks for its place once a process
	$(VENV)-bench/bin/python examples/trl_callback.py --steps 6 --out $(VENV)-bench/trl-run

# On a machine with a GPU: everything that is checked and timed there, as one table.
bench-gpu: $(VENV)-bench/.run
	$(VENV)-bench/bin/python -m pip install --quiet -c constraints.txt torchao
	$(VENV)-bench/bin/python -m benchmarks.gpu

bench-preference-losses: $(VENV)-bench/.run
	$(VENV)-bench/bin/python -m benchmarks.preference_losses

# Two of the fixtures by today's TRL and TensorBoard: does the importer still see what it saw?
$(VENV)-bench/.board: $(VENV)-bench/.run
	$(VENV)-bench/bin/python -m pip install --quiet -c constraints.txt 'tensorboard==2.21.*' pandas
	touch $@

fixtures-check: $(VENV)-bench/.board
	$(VENV)-bench/bin/python tools/make_fixtures.py --check trl-1.16 tensorboard \
		--python trl-1.16=$(VENV)-bench/bin/python --python tensorboard=$(VENV)-bench/bin/python

# The server that a judge is asked behind.
$(VENV)-serve/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-serve
	$(VENV)-serve/bin/python -m pip install --quiet -c constraints.txt -e . 'transformers[serving]'
	touch $@

bench-judge: $(VENV)-serve/.run
	$(VENV)-serve/bin/python -m benchmarks.judge

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-serve $(VENV)-site build dist .pytest_cache .ruff_cache .hypothesis
