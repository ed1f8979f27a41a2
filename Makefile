# Two commands do everything on a fresh machine: `make demo` and `make test`. Both build .venv first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
# procgen-mirror and gym3 declare numpy<2 though they run on 2.x, so they come without their dependencies;
# cffi, imageio, cloudpickle and filelock are what they really use.
PROCGEN := procgen-mirror gym3 gym gym-notices
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: install demo test lint docs docs-check bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into .venv: about 2 GB, minutes on a fast connection; nothing outside this folder is changed"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bcl needs Python 3.11 or newer; set PYTHON=python3.x")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "1 of 2: PyTorch, games and tools, in the versions of constraints.txt"
	$(PIP) -e '.[atari,box2d,ray,tensorboard,video,sb3,dev]' cffi imageio cloudpickle filelock
	@echo "2 of 2: Procgen"
	$(PIP) --no-deps $(PROCGEN)
	touch $@

demo: install
	$(BIN)/python examples/demo.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy bcl

# One PyTorch thread per worker: the tests run side by side instead. By file, so that what a file trains is trained once, in the
# order of tests/conftest.py.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# The site, in build/site.
docs: install
	$(PIP) -e '.[docs]'
	$(BIN)/mkdocs build --strict

# Runs every command of README.md and docs/, shortened: 10 to 11 min on 2 busy cores.
# The few that are not run have their reason in tests/docs_commands.py.
docs-check: install
	$(BIN)/python tests/docs_check.py

bench: install
	$(BIN)/bcl bench env

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
