# `make demo` runs a real experiment on the embedded cloud; `make test` runs the tests.
PYTHON ?= python3
SEED ?= 1
MINUTES ?= 2
REPEATS ?= 3
# Tests wait some of the time: more processes than processors are a little quicker.
PROCESSES ?= 5
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo wheel test test-slow lives storm accept real examples test-versions bench lint docs clean

demo: $(VENV)/demo
	./examples/demo.sh

# Berg as one file in dist/, for computers without this repository.
wheel: $(VENV)/demo
	rm -rf dist
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist . ./localcloud
	@ls dist/*.whl

# What works, in some five minutes; PYTEST=tests/test_jobs.py for the tests of Berg alone that it names.
test: $(VENV)/test
	$(BIN)/pytest -q -n $(PROCESSES) --dist worksteal $(or $(PYTEST),-m "not slow")
	$(if $(PYTEST),,$(MAKE) -C localcloud test PYTHON=$(PYTHON))

# What takes a test longer: machines that are lost, wait, begin again, and laptops that sleep.
test-slow: $(VENV)/test
	$(BIN)/pytest -q -n $(PROCESSES) --dist worksteal -m slow $(PYTEST)

# Random programs write results, are cut at random, and what a restore brings is compared with their history.
lives: $(VENV)/test
	cd tests && timeout 1800 ../$(BIN)/python lives.py $(or $(LIVES),6) $(SEED)

# Jobs under random faults for MINUTES, from a SEED on: one that failed can be run again.
storm: $(VENV)/test
	cd tests && ../$(BIN)/python storm.py $(MINUTES) $(SEED)

# Promises to users, tried from outside on any berg: accept/README.md.
accept: $(VENV)/demo
	$(BIN)/python -m accept --berg $(or $(BERG),$(BIN)/berg) --cloud $(or $(CLOUD),local) --only '$(ONLY)' \
	    $(if $(PROJECT),--project $(PROJECT)) $(if $(BUCKET),--bucket $(BUCKET)) $(if $(OUT),--out $(OUT)) \
	    --seed $(SEED) $(if $(JOBS),--jobs $(JOBS)) $(if $(SAMPLE_ROWS),--sample)

# All steps of a first run on Google Cloud, with settings of its own: PROJECT, BUCKET; GPU=l4, TPU=v6e-1, CLUSTER=NAME for
# more. Without a PROJECT on an embedded cloud.
real: export BERG_HOME = $(CURDIR)/.real
real: $(VENV)/demo
	$(BIN)/berg init $(if $(PROJECT),--project $(PROJECT) --bucket $(BUCKET),--local) -y && $(BIN)/berg doctor
	$(BIN)/berg try $(if $(GPU),--gpu $(GPU)) $(if $(TPU),--tpu $(TPU)) $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(YES),-y)
	$(if $(PROJECT),,$(BIN)/berg local stop -y)

# Each of examples/, by the command of its page. Without their packages, tests skip them: here are all but Horovod, which
# examples/horovod/horovod.sh builds in minutes, and torch_xla (TORCH_XLA_PYTHON=a python that has it).
examples: $(VENV)/examples
	$(BIN)/pytest -n 2 -rs tests/test_examples.py $(PYTEST)

# The core tests on the oldest and the newest python here, with the lowest and the newest versions of what Berg needs.
test-versions: $(VENV)/test
	tools/versions

# Berg, rclone and gcloud in one run; writes docs/benchmarks.md, or prints the tables of SCRIPTS alone.
bench: $(VENV)/bench
	$(BIN)/python bench/run.py --repeats $(REPEATS) $(SCRIPTS)

lint: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --follow-imports=silent --exclude 'berg/(boot|results|worker).py' berg

# Writes docs/commands.md, docs/llms.txt and the pictures of README and docs.
docs: $(VENV)/test
	$(BIN)/python tools/commands.py docs/commands.md
	$(BIN)/python tools/llms.py docs/llms.txt
	$(BIN)/python tools/screenshot.py docs

clean:
	$(MAKE) -C localcloud clean
	rm -rf $(VENV) .demo .real build dist *.egg-info

# Each stamp is a set of extras in the one virtual environment.
$(VENV)/demo: setup.py localcloud/pyproject.toml
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || tools/require python3-venv
	tools/require git
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -e ./localcloud -e '.[page]'
	touch $@

$(VENV)/test: $(VENV)/demo
	tools/require git openssh-client rsync
	[ "$$(id -u)" != 0 ] || tools/require chromium openmpi-bin openssh-server tmux
	$(BIN)/pip install --quiet -e '.[page,tensorboard,test]'
	touch $@

$(VENV)/savers: $(VENV)/test accept/savers/requirements.txt
	$(BIN)/pip install --quiet -r accept/savers/requirements.txt
	touch $@

$(VENV)/examples: $(VENV)/test
	$(BIN)/pip install --quiet 'torch==2.13.0' 'jax==0.10.2' matplotlib mpi4py numpy optuna pillow 'scikit-learn>=1.3' wandb webdataset
	touch $@

$(VENV)/bench: $(VENV)/demo
	[ "$$(id -u)" != 0 ] || tools/require rclone
	touch $@

$(VENV)/lint: $(VENV)/demo
	$(BIN)/pip install --quiet -e '.[page,lint]'
	touch $@
