# `make demo` runs a real experiment on the embedded cloud; `make test` runs the tests.
PYTHON ?= python3
ROUNDS ?= 10
SEED ?= 1
MINUTES ?= 2
REPEATS ?= 5
# Tests wait some of the time: more processes than processors are a little quicker; ten are slower on two.
PROCESSES ?= 6
SAMPLE ?= 20
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo wheel accept next lives test test-berg slow examples test-versions foreign chaos whole hostile storm mutate bench lint docs clean

demo: $(VENV)/demo
	./examples/demo.sh

# Berg as one file in dist/, for computers without this repo.
wheel: $(VENV)/demo
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/berg-*.whl

test: test-berg
	$(if $(PYTEST),,$(MAKE) -C localcloud test PYTHON=$(PYTHON) PROCESSES=$(PROCESSES))

# Promises to users, tried from outside on any berg: accept/README.md.
accept: $(VENV)/demo
	$(BIN)/python -m accept --berg $(or $(BERG),$(BIN)/berg) --cloud $(or $(CLOUD),local) --only '$(ONLY)' \
	    $(if $(PROJECT),--project $(PROJECT)) $(if $(BUCKET),--bucket $(BUCKET)) $(if $(OUT),--out $(OUT)) \
	    $(if $(ROUNDS_OF_ROWS),--rounds $(ROUNDS_OF_ROWS)) $(if $(JOBS),--jobs $(JOBS)) $(if $(SAMPLE_ROWS),--sample)

# The Berg that is being written again, in next/: its own environment, linters, tests and LIVES of results.
next: next/.venv/made
	next/.venv/bin/ruff check next
	next/.venv/bin/ruff format --check next
	cd next && .venv/bin/mypy --strict berg
	cd next && .venv/bin/pytest -q -n $(or $(NEXT_PROCESSES),3) --dist worksteal $(PYTEST)
	$(if $(PYTEST),,$(MAKE) lives)

lives: next/.venv/made
	cd next && timeout 900 .venv/bin/python tests/lives.py $(or $(LIVES),6)

next/.venv/made: next/pyproject.toml localcloud/pyproject.toml
	tools/require git openssh-client python3-venv rsync
	[ "$$(id -u)" != 0 ] || tools/require chromium openmpi-bin openssh-server tmux
	$(PYTHON) -m venv next/.venv
	next/.venv/bin/pip install --quiet -e ./localcloud -e './next[test]'
	touch $@

# The tests of berg alone, or of PYTEST.
test-berg: $(VENV)/test $(VENV)/wheelhouse
	$(BIN)/pytest -n $(PROCESSES) --dist worksteal $(PYTEST)

# The tests that `make test` leaves out: of many machines, and of variants of what a quicker one looks at.
slow: $(VENV)/test $(VENV)/wheelhouse
	$(BIN)/pytest -n $(PROCESSES) --dist worksteal --slow $(PYTEST)
	$(if $(PYTEST),,$(MAKE) -C localcloud slow PYTHON=$(PYTHON) PROCESSES=$(PROCESSES))

# The examples, also those whose packages the tests do not bring along: Horovod takes some minutes to build. XLA=1 brings
# torch_xla with the torch that it takes: 6 GB, where no index has one for CPUs alone.
examples: $(VENV)/test $(VENV)/examples $(if $(XLA),$(VENV)/xla)
	$(if $(XLA),TORCH_XLA_PYTHON=$(CURDIR)/$(VENV)/xla/bin/python) $(BIN)/pytest --all -rs tests/test_examples.py tests/test_digits.py tests/watch/test_tabs.py $(PYTEST)

# Clients that no one here wrote, against the embedded cloud: gcsfs's own tests, rclone, gcloud, kubernetes, ….
foreign:
	$(MAKE) -C localcloud foreign PYTHON=$(PYTHON)

# The core tests on the oldest and the newest python here, with the lowest and the newest versions of what berg needs.
test-versions: $(VENV)/test
	tools/versions

# Every fault many times, with other seeds; writes the table in docs/reliability.md. Takes half an hour.
chaos: $(VENV)/test $(VENV)/wheelhouse
	$(BIN)/pytest -n 4 --dist worksteal tests/test_faults.py tests/test_box_faults.py tests/test_cluster_faults.py tests/test_pod_faults.py tests/test_claims.py tests/test_whole.py tests/test_power.py::test_a_move_that_is_killed_is_found_and_goes_on --rounds $(ROUNDS) --table docs/reliability.md $(PYTEST)

# Real savers whose machine is cut: does a restore bring one moment? Takes half an hour.
whole: $(VENV)/test $(VENV)/savers
	$(BIN)/pytest -q --all tests/real_savers.py --rounds $(ROUNDS) $(PYTEST)

# A job that is root, with its machine's token, tries what it can; writes the table in docs/security.md.
hostile: $(VENV)/test $(VENV)/wheelhouse
	HOSTILE_TABLE=docs/security.md $(BIN)/pytest -q --all tests/test_hostile.py $(PYTEST)

# Jobs, clusters and sweeps under random faults for MINUTES; a seed that failed can be run again: SEED=17 MINUTES=0.
storm: $(VENV)/test $(VENV)/wheelhouse
	SEED=$(SEED) MINUTES=$(MINUTES) $(BIN)/pytest -q -s tests/storm.py

# Break SAMPLE things in each of MODULES, one at a time, and see which ones the tests notice; writes docs/testing.md.
mutate: $(VENV)/mutate
	$(BIN)/python tools/mutate.py --sample $(SAMPLE) --seed $(SEED) --page docs/testing.md $(MODULES)

# Berg and its peers in one run; writes docs/benchmarks.md, or its sections of SCRIPTS alone. CHECK=1 compares with it.
bench: $(VENV)/bench
	$(BIN)/python bench/run.py --repeats $(REPEATS) $(if $(CHECK),--check) $(SCRIPTS)

lint: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --follow-imports=silent berg
	$(BIN)/python tools/ease.py
	$(BIN)/python tools/words.py

# Write docs/commands.md anew, from what the commands say of themselves, docs/llms.txt, and the pictures of the page, where Chromium is.
docs: $(VENV)/demo
	$(BIN)/python tools/commands.py docs/commands.md
	$(BIN)/python tools/llms.py docs/llms.txt
	$(BIN)/python tools/screenshot.py docs

clean:
	$(MAKE) -C localcloud clean
	rm -rf $(VENV) .demo build dist *.egg-info

# Each stamp is a set of extras in the one virtual environment.
$(VENV)/demo: setup.py localcloud/pyproject.toml
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || tools/require python3-venv
	tools/require git
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -e ./localcloud -e '.[page]'
	touch $@

$(VENV)/test: $(VENV)/demo
	tools/require git git-lfs iproute2 openssh-client python3-pip python3-venv rsync
	[ "$$(id -u)" != 0 ] || tools/require chromium docker-registry faketime nginx-light openmpi-bin openssh-server podman runc tmux
	$(BIN)/pip install --quiet -e './localcloud[test]' -e '.[page,test]'
	touch $@

$(VENV)/examples: $(VENV)/test berg/machine/horovod.sh
	[ "$$(id -u)" != 0 ] || tools/require cmake g++ libopenmpi-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" bash -e -c 'pip install -r examples/horovod/requirements.txt; . berg/machine/horovod.sh'
	touch $@

$(VENV)/savers: $(VENV)/test accept/savers/requirements.txt
	$(BIN)/pip install --quiet -r accept/savers/requirements.txt
	touch $@

$(VENV)/xla: examples/tpu_torch/requirements.txt
	rm -rf $@
	$(PYTHON) -m venv $@.new
	$@.new/bin/pip install --quiet numpy 'scikit-learn>=1.3' torch==2.9.0 torch_xla==2.9.0
	mv $@.new $@

# What pip and uv need on the tests' machines, which have no network: to build a package, and to install what berg
# needs; and uv itself.
$(VENV)/wheelhouse: $(VENV)/demo Makefile
	$(BIN)/pip download --quiet --dest $@ setuptools wheel pip mpi4py py-spy==0.4.3 .
	$(BIN)/pip download --quiet --no-deps --only-binary :all: --python-version 3.12 --platform manylinux2014_x86_64 --dest $@ google-crc32c==1.9.0
	$(BIN)/python -c 'from berg.code import dist; import pathlib; name, content = dist.fetch_uv(); pathlib.Path("$@", name).write_bytes(content)'
	touch $@

$(VENV)/bench: $(VENV)/demo
	tools/require git rsync openssh-client
	[ "$$(id -u)" != 0 ] || tools/require nginx-light openssh-server openmpi-bin rclone
	$(BIN)/pip install --quiet mpi4py
	touch $@

$(VENV)/mutate: $(VENV)/test $(VENV)/wheelhouse
	$(BIN)/pip install --quiet 'cosmic-ray>=8.7'
	touch $@

$(VENV)/lint: $(VENV)/demo
	$(BIN)/pip install --quiet -e ./localcloud -e '.[page,lint]'
	touch $@
