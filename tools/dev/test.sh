# ./dev test: every stage runs, whatever the others did; tools/dev/report.py adds them up. Sourced.

command_test() {
  local lite=0 engines_too=0
  while [[ $# -gt 0 ]]; do
    case $1 in
      --full) export FLASHMLA_TEST_FULL=1 ;;
      --lite) lite=1 ;;
      --engines) engines_too=1 ;;
      *) die "'test' does not take '$1'; see ./dev help" ;;
    esac
    shift
  done
  if ((lite && engines_too)); then die "--lite leaves out torch, which --engines needs: give one of them"; fi
  results=$state/results
  rm -rf "$results"
  mkdir -p "$results"
  require "${needs_build[@]}"
  # The Python stage compiles what the C++ stage has compiled: from the cache. Elsewhere ccache is used where it is.
  if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then require "command:ccache ccache"; fi
  pip_require python-build test plot
  if ((lite)); then export FLASHMLA_TEST_LITE=1; else pip_require torch jax transformers; fi

  stage cpp test_cpp
  stage python test_python
  if ((engines_too)); then stage engines test_engines; fi
  stage docs test_docs
  stage asan test_asan
  stage tsan test_tsan
  stage cuda test_cuda
  explained=1
  "$python" tools/dev/report.py "$results"
}

# stage NAME FUNCTION ARGUMENTS...: runs it, notes its time and exit code for the report.
stage() {
  local name=$1 started=$SECONDS status
  shift
  say "---- $name"
  set +e
  (set -e; "$@")
  status=$?
  set -e
  printf '%s\t%d\t%d\n' "$name" "$status" $((SECONDS - started)) >>"$results/stages.tsv"
  say "---- $name took $(duration $((SECONDS - started)))"
}

# ctest_in BUILD NAME ARGUMENTS...
ctest_in() {
  local build=$1 name=$2
  shift 2
  ctest --test-dir "$build" --output-on-failure --timeout 600 -j "$jobs" --output-junit "$results/$name.xml" \
    --progress "$@"
}

test_cpp() {
  build_preset cpu -DFLASHMLA_BUILD_TESTS=ON
  ctest_in build/cpu cpp
}

# Not editable: the tests see what a user gets from `pip install .`, but for the CUDA kernels, which would compile for minutes
# where a toolkit is.
test_python() {
  install_package "${DEV_CUDA:-OFF}"
  (cd tests/python && "$venv/bin/python" -m pytest -q -ra --junitxml="$results/python.xml" .)
}

test_docs() {
  "$venv/bin/python" -m pytest -q -ra --junitxml="$results/docs.xml" tests/docs tests/tools
}

# Address and undefined behaviour together. No program: none of its tests is quick.
test_asan() {
  build_preset asan -DFLASHMLA_BUILD_CLI=OFF
  ctest_in build/asan asan -L quick
}

# The tests in which threads meet; the runner's threads are the library's.
test_tsan() {
  build_preset tsan -DFLASHMLA_BUILD_CLI=OFF -DFLASHMLA_BUILD_RUNNER=OFF flashmla_tests
  ctest_in build/tsan tsan -L quick -R 'Concurrency|Thread'
}

# Compiles the CUDA code for every architecture; no GPU is needed. Spills and warnings are errors (cmake/Cuda.cmake).
test_cuda() {
  local nvcc version least=12.8
  nvcc=$(command -v "${CUDACXX:-nvcc}" || command -v /usr/local/cuda/bin/nvcc) || {
    cuda_result '<skipped message="no CUDA toolkit is here: nvcc was not found"/>'
    return 0
  }
  version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  at_least "$version" "$least" || {
    cuda_result "<skipped message=\"the CUDA toolkit is of version $version; $least or newer is needed\"/>"
    return 0
  }
  CUDACXX=$nvcc build_preset cuda -DFLASHMLA_BUILD_TESTS=OFF -DFLASHMLA_BUILD_CLI=OFF -DFLASHMLA_BUILD_RUNNER=OFF flashmla
  cuda_result ""
}

# cuda_result STATE: the stage's one result, in JUnit's form.
cuda_result() {
  printf '<testsuite><testcase name="CUDA code compiles for every architecture">%s</testcase></testsuite>\n' "$1" \
    >"$results/cuda.xml"
}
