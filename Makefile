# What a newcomer needs: make demo, make test. `make help` lists the rest.
# VENV=/path       the environment to work in (default: the active one if it has torch, else .venv, made when it is missing)
# VENV_PADDLE=/path   the same for PaddlePaddle, .venv-paddle: the two frameworks are kept apart, as most users have one
# PYTHON=python3   what makes both

PYTHON ?= python3
# Processes that pytest runs side by side, and what else to hand to it: make test PYTEST="-k launch"
JOBS ?= 2
LOAD ?= 10
PYTEST ?=
# AGAIN=3: up to so many tests that failed are run once more, alone, and pass when they pass there (CI does)
AGAIN ?=
RUNNER = $(if $(AGAIN),.ci/again.py --at-most $(AGAIN),-m pytest)

export PYTHON
.DEFAULT_GOAL := help
.PHONY: help stress-attach bench-against demo demo-paddle native wheels native-sanitized test-native test-hooks quick test test-torch test-paddle stress lint bench pictures clean

help:
	@echo "make demo      install into .venv and open the debugger on a transformer whose gradient turns NaN"
	@echo "make demo-paddle   the same on PaddlePaddle: nested PyLayers with Paddle's VLOG beside them (.venv-paddle)"
	@echo "make test      everything that CI runs: ruff, mypy, import contracts, pytest, the wheel in an empty environment. The whole"
	@echo "               suite runs with the extension where a C++ compiler is found, the tests that decide without it too"
	@echo "make quick     what takes a minute: ruff, the tests that need no framework, one of each framework"
	@echo "make test-torch, make test-paddle   the tests of one framework: in .venv, in .venv-paddle"
	@echo "make native    build the optional extension adbg._native here, for the Python of .venv"
	@echo "make wheels    wheels with the extension for every Python that is found, and one without it, in dist/"
	@echo "make test-hooks    the tests that decide between the extension and the Python hooks, with the hooks (ADBG_NATIVE=0)"
	@echo "make test-native   those of the extension and of the backends with it, and its C++ under sanitizers"
	@echo "make stress    the tests on a busy machine: LOAD=10 processes run beside them; PYTEST=\"-k signals\" selects"
	@echo "           ADBG_TIMES=200 make test PYTEST=tests/promises/test_own_exceptions.py   200 interruptions for each case"
	@echo "make stress-attach   50 attaches to each kind of process, with every Python that is found: success, latency, damage"
	@echo "make lint      the first three of these"
	@echo "make bench     what the debugger costs, per training step (writes bench-results/)"
	@echo "make bench-against BASE=CHECKOUT   the same for two checkouts, side by side"
	@echo "make pictures  take the README's pictures again"
	@echo "make clean     remove what was built, .venv too"

# The Python of the environment with the extras $(2) and, where they can be had, $(3), installed when it is not; says why
# when it cannot be had.
define environment
command -v $(PYTHON) >/dev/null || { echo "adbg: $(PYTHON) was not found: install Python 3.10 or newer, or set PYTHON=/path/to/python3" >&2; exit 1; }; \
python=$$($(PYTHON) .ci/environment.py --framework $(1) --extras "$(2)" --wanted "$(3)") || exit 1
endef

demo:
	@$(call environment,torch,); $(announced); $(built); \
	if [ -t 0 ] && [ -t 1 ]; then exec "$$python" -m adbg run -b nan examples/nan_at_sqrt.py; \
	else exec "$$python" -m adbg run --batch -b nan -x examples/nan_at_sqrt.adbg examples/nan_at_sqrt.py </dev/null; fi

demo-paddle:
	@$(call environment,paddle,); $(announced); $(built); \
	if [ -t 0 ] && [ -t 1 ]; then exec "$$python" -m adbg run -b 'GradNodePyLayer_*' -e 'vlog 4' examples/paddle_nested_pylayers.py; \
	else exec "$$python" -m adbg run --batch -x examples/paddle_nested_pylayers.adbg examples/paddle_nested_pylayers.py </dev/null; fi

# The extension, for the Python that was found, where there is a compiler: it is used then. Nothing is said where there
# is none, or no Python.h: the Python hooks do all of it. Compiles what changed.
define built
{ { command -v g++ || command -v c++; } >/dev/null && "$$python" setup.py --quiet build_ext --inplace --build-temp build/native >/dev/null 2>&1 || true; }
endef

# A demo shows what every node did, which the extension writes down: 28 s, the first time.
define announced
{ command -v g++ || command -v c++; } >/dev/null && { ls adbg/_native.*.so >/dev/null 2>&1 || echo "adbg: building the native core, half a minute, once" >&2; } || true
endef

# All of it runs even when an early part fails. The environment of Paddle is made beside that of torch and the checks of
# lint; what it has to say it says in test-paddle.
test:
	@$(PYTHON) .ci/environment.py --framework paddle --extras dev --wanted profilers >/dev/null 2>&1 & made=$$!; \
	trap "kill $$made 2>/dev/null; exit 130" INT TERM; \
	status=0; $(MAKE) --no-print-directory lint || status=1; wait $$made || true; \
	for part in test-torch test-paddle test-hooks; do $(MAKE) --no-print-directory $$part || status=1; done; \
	exit $$status

# What tests/conftest.py marks as quick; make test runs them too. Three at a time: they wait more than they work (72 s
# on two idle cores, 84 s two at a time).
quick:
	@$(call environment,torch,dev); "$$python" -m ruff check . && exec "$$python" -m pytest -n 3 -m quick $(PYTEST)
	@$(call environment,paddle,dev); exec "$$python" -m pytest -m "quick and paddle" tests/project $(PYTEST)

# By files, whose tests share what they prepare: pytest-xdist 3.8 does not know the groups of tests under pytest 9.2.
test-torch:
	@$(call environment,torch,dev,profilers); $(built); exec "$$python" $(RUNNER) -n $(JOBS) --dist loadfile $(PYTEST)

# What needs no framework was run beside torch.
test-paddle:
	@$(call environment,paddle,dev,profilers); $(built); exec "$$python" $(RUNNER) -n $(JOBS) --dist loadfile -m paddle $(PYTEST)

# What the extension does in the place of the Python hooks, done by these, as where there is no compiler. With none here
# the two parts above were just that.
DECIDE = tests/engine/backends tests/promises/test_nan_from_inf.py tests/promises/test_names_by_frame.py
test-hooks:
	@ls adbg/_native*.so >/dev/null 2>&1 || { echo "no extension here: the tests ran with the Python hooks"; exit 0; }; \
	status=0; export ADBG_NATIVE=0; \
	$(call environment,torch,dev,profilers); "$$python" $(RUNNER) -n $(JOBS) --dist loadfile $(DECIDE) || status=1; \
	$(call environment,paddle,dev,profilers); "$$python" $(RUNNER) -n $(JOBS) --dist loadfile -m paddle $(DECIDE) || status=1; \
	exit $$status

# The extension lies in adbg/, where every Python of this version finds it: .venv and .venv-paddle alike.
native:
	@$(call environment,torch,dev); "$$python" setup.py --quiet build_ext --inplace --build-temp build/native

wheels:
	@$(PYTHON) .ci/wheels.py --out dist

# Beside it, never in its place: it needs libasan to be loaded first.
native-sanitized:
	@$(call environment,torch,dev); ADBG_BUILD_NATIVE=sanitized "$$python" setup.py --quiet build_ext \
		--build-temp build/native-sanitized --build-lib build/native-sanitized/lib

# Assignments in front of a Python whose extension is that one. Its loader does not see where libpaddle has its own
# libraries, and libpaddle frees with delete what it has from malloc: neither is the extension's.
define sanitized
LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
ASAN_OPTIONS=$(1) UBSAN_OPTIONS=halt_on_error=1 \
ADBG_NATIVE="$$(find "$$PWD/build/native-sanitized/lib" -name '_native*.so' | head -1)"
endef

test-native: native native-sanitized
	@status=0; export ADBG_NATIVE=1; $(call environment,torch,dev,profilers); \
	"$$python" -m pytest -n $(JOBS) --dist loadfile tests/engine/native tests/engine/backends $(PYTEST) || status=1; \
	$(call sanitized,detect_leaks=0) "$$python" -m pytest tests/engine/native -k "not process_ends" || status=1; \
	$(call environment,paddle,dev,profilers); \
	"$$python" -m pytest -n $(JOBS) --dist loadfile -m paddle tests/engine/native tests/engine/backends $(PYTEST) || status=1; \
	LD_LIBRARY_PATH=$$("$$python" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("paddle").origin))')/libs \
	$(call sanitized,detect_leaks=0:alloc_dealloc_mismatch=0) "$$python" -m pytest -m paddle tests/engine/native || status=1; \
	exit $$status

# What passes only on an idle machine shows here: hours for all of it, minutes with PYTEST="FILE" or "-k WORD".
stress:
	@$(call environment,torch,dev); exec "$$python" .ci/stress.py --load $(LOAD) $(MAKE) --no-print-directory -k test-torch test-paddle

lint:
	@$(call environment,torch,dev); "$$python" .ci/lint.py

# N=50 attaches to every kind of process, with every Python that is found; WRITE=--write puts the table into the pages.
stress-attach:
	@$(call environment,paddle,dev); VENV_PADDLE=$${python%/bin/python*}; export VENV_PADDLE; \
	$(call environment,torch,dev); exec "$$python" -m tests.stress.attach --attaches $(or $(N),50) $(WRITE)

# BASE=../other-checkout with environments of its own (.venv, .venv-paddle)
bench-against:
	@$(call environment,torch,dev); "$$python" tests/bench/compare.py --base "$(BASE)"
	@$(call environment,paddle,dev); "$$python" tests/bench/compare.py --base "$(BASE)" --framework paddle

# With the extension where there is a compiler, and with the Python hooks.
bench:
	@$(call environment,torch,dev); $(built); "$$python" tests/bench/run_bench.py
	@$(call environment,torch,dev); ADBG_NATIVE=0 "$$python" tests/bench/run_bench.py --rounds 12
	@$(call environment,paddle,dev); $(built); "$$python" tests/bench/run_bench.py --framework paddle
	@$(call environment,paddle,dev); ADBG_NATIVE=0 "$$python" tests/bench/run_bench.py --framework paddle --rounds 12
	@$(call environment,torch,dev); "$$python" tests/bench/bench_profilers.py
	@$(call environment,torch,dev); "$$python" tests/bench/bench_diagnose.py
	@$(call environment,paddle,dev); "$$python" tests/bench/bench_diagnose.py --framework paddle
	@$(call environment,paddle,dev); "$$python" tests/bench/bench_profilers.py --framework paddle
	@$(call environment,torch,dev); "$$python" tests/bench/bench_log.py
	@$(call environment,torch,dev); "$$python" -m tests.bench.bench_attach
	@$(call environment,paddle,dev); "$$python" -m tests.bench.bench_attach --framework paddle

pictures:
	@$(call environment,paddle,); paddle=$$python; \
	$(call environment,torch,dev$(comma)docs); exec "$$python" docs/pictures.py --paddle "$$paddle"

clean:
	rm -rf .venv .venv-paddle adbg/_native*.so build dist *.egg-info bench-results test-logs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

comma := ,
