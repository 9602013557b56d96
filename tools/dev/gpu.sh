# ./dev gpu: the tests and benches that need a GPU. Sourced.

command_gpu() {
  local build=1 sanitize=0 jitter=0 commit="" out=$state/gpu
  while [[ $# -gt 0 ]]; do
    case $1 in
      --no-build) build=0 ;;
      --sanitize) sanitize=1 ;;
      --jitter) jitter=1 ;;
      --commit) [[ $# -ge 2 ]] || die "--commit needs a commit"; commit=$2; shift ;;
      --out) [[ $# -ge 2 ]] || die "--out needs a folder"; out=$2; shift ;;
      *) die "'gpu' does not take '$1'; see ./dev help" ;;
    esac
    shift
  done
  command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1 || die "no NVIDIA GPU answers (nvidia-smi)"
  mkdir -p "$out"
  if ((build)); then
    require "${needs_build[@]}"
    command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]] || die "nvcc is not there: install the CUDA toolkit, version 12.8 or newer"
    if ((jitter)); then
      build_preset jitter -DFLASHMLA_BUILD_TESTS=ON -DFLASHMLA_BUILD_CLI=OFF -DFLASHMLA_BUILD_RUNNER=OFF \
        -DBUILD_SHARED_LIBS=OFF flashmla_tests
    else
      build_preset cuda -DFLASHMLA_BUILD_TESTS=ON -DFLASHMLA_BUILD_CLI=OFF -DBUILD_SHARED_LIBS=OFF
    fi
  fi
  if ((jitter)); then
    gpu_jitter
    return
  fi
  local tests=build/cuda/tests/flashmla_tests benches=build/cuda/bench/gpu
  [[ -x $tests && -x $benches/flashmla_gpu_bench ]] || die "build/cuda is not built: run ./dev gpu without --no-build"
  [[ -n $commit ]] || commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
  local failed=0
  # Capturing the first call of a process needs a process.
  gpu_tests first "$tests" --gtest_filter=CudaGraph.FirstCallOfTheProcess || failed=1
  gpu_tests all "$tests" \
    --gtest_filter='*Cuda*:Decode.*:Lse.*:Hostile.*:Covering/*:Models/*:Property.*:NonFinite.*:Empty.*:Shard.*' || failed=1
  if ((sanitize)); then
    local tool
    for tool in memcheck racecheck synccheck; do
      gpu_tests "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" \
        --gtest_filter='Decode.MixesEmptyAndLongRequests:Decode.WritesEveryRowOfPaddedRaggedBatches:CudaDecode.BadValues*:Hostile.TilesAtSplitBoundaries' || failed=1
    done
  fi
  local sources
  sources=$(find src/cuda cases bench/gpu -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16)
  "$benches/flashmla_gpu_bench" --json "$out/decode.json" --commit "$commit" --sources "$sources" || failed=1
  "$benches/flashmla_gpu_bench" --choices 20 --json "$out/choices.json" || failed=1
  if [[ -x $benches/flashmla_gpu_cache_bench ]]; then
    "$benches/flashmla_gpu_cache_bench" --json "$out/cache.json" || failed=1
  fi
  ((failed == 0)) || die "some of it failed; logs are in $out"
  say "all of it passed; results are in $out"
}

# The Hopper kernels with delays at random (cmake/Cuda.cmake). No times: they would mean nothing.
gpu_jitter() {
  local tests=build/jitter/tests/flashmla_tests
  [[ -x $tests ]] || die "build/jitter is not built: run ./dev gpu --jitter without --no-build"
  gpu_tests jitter "$tests" \
    --gtest_filter='CudaHopperPtx.*:CudaWgmma.*:CudaDecode.HopperKernels*:CudaDecode.FiftyRepeats*:CudaGraph.*:Decode.*:Hostile.*' ||
    die "some of it failed; the log is $out/jitter.log"
  say "all of it passed; the log is $out/jitter.log"
}

# gpu_tests NAME COMMAND...: output to a log; its last lines when it fails.
gpu_tests() {
  local name=$1 started=$SECONDS
  shift
  if "$@" --gtest_brief=1 >"$out/$name.log" 2>&1; then
    say "tests '$name': $(grep -h '^\[==========\].*ran' "$out/$name.log" | tail -n 1 | sed 's/\[=*\] //'), $((SECONDS - started)) s"
    return 0
  fi
  tail -n 40 "$out/$name.log" >&2
  say "tests '$name' FAILED after $((SECONDS - started)) s (log: $out/$name.log)"
  return 1
}
