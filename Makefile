# Everything a fresh machine needs: Python 3.11 or newer with venv, and a network for the first install.
PYTHON ?= python3
VENV ?= .venv
EXTRA ?= cpu
# Tests at a time.
TESTERS ?= 2
DEMO ?= demo

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRA)

.PHONY: install demo test check lint docs clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA),dev]'
	touch $(STAMP)

demo: install
	$(BIN)/partgcd weights fetch offline/vit-small
	test -f $(DEMO)/truth.csv || $(BIN)/partgcd demo --out $(DEMO)
	if test -f $(DEMO)/run/run.json; \
	  then $(BIN)/partgcd train --resume $(DEMO)/run; \
	  else $(BIN)/partgcd train --data $(DEMO)/images --out $(DEMO)/run --classes 12 --image-size 154 --set parts.count=5; \
	fi
	$(BIN)/partgcd evaluate $(DEMO)/run --truth $(DEMO)/truth.csv --masks $(DEMO)/masks
	test -d $(DEMO)/model || $(BIN)/partgcd export $(DEMO)/run --out $(DEMO)/model
	$(BIN)/partgcd serve $(DEMO)/model --port 0 > $(DEMO)/address 2> $(DEMO)/serve.log & \
	  server=$$!; trap 'kill $$server; wait $$server' EXIT; \
	  until grep -q '^serving at' $(DEMO)/address; do kill -0 $$server || exit 1; sleep 0.2; done; \
	  $(BIN)/partgcd ask "$$(sed -n 's/^serving at \([^ ]*\).*/\1/p' $(DEMO)/address)" $(DEMO)/holdout
	@echo "open $(DEMO)/run/report.html"
	@echo "serve it: $(BIN)/partgcd serve $(DEMO)/model"

# Kills, several workers, the pages of the guide and real photographs take longer than all else: `check` runs them too.
test: install lint
	$(BIN)/partgcd weights fetch offline/vit-small
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TESTERS) --dist loadgroup -m 'not slow and not photos'

check: install lint
	$(BIN)/partgcd weights fetch offline/vit-small
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TESTERS) --dist loadgroup

# Types are checked as installed: only there are cli/, serving/ and training/ inside the package.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build $(VENV)/typed
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/typed .
	cd $(VENV) && MYPYPATH=typed bin/mypy --config-file ../pyproject.toml

# A site of docs/ in build/site; a link between its pages that leads nowhere is an error.
docs: install
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA),docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(DEMO)
