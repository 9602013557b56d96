# Configuring and building; demo and bench. Sourced.

jobs=${DEV_JOBS:-$(nproc)}
export CMAKE_GENERATOR=Ninja

# build_preset NAME [OPTION|TARGET...]: configures build/NAME by its preset in CMakePresets.json, with -D options, and
# builds the targets (all without one).
build_preset() {
  local preset=$1 options=() targets=() word
  shift
  for word in "$@"; do
    if [[ $word == -D* ]]; then options+=("$word"); else targets+=(--target "$word"); fi
  done
  require_compiler
  require_cmake
  say "building build/$preset"
  cmake --preset "$preset" ${options[@]+"${options[@]}"} >"$state/configure-$preset.log" 2>&1 || {
    cat "$state/configure-$preset.log" >&2
    die "cmake could not configure the preset '$preset'"
  }
  cmake --build "build/$preset" -j "$jobs" ${targets[@]+"${targets[@]}"} || die "the build of build/$preset failed"
}

program=build/cpu/cli/flashmla

command_build() {
  no_more_arguments build "$@"
  mkdir -p "$state"
  require "${needs_build[@]}"
  build_preset cpu -DFLASHMLA_BUILD_TESTS=ON
  say "built: $program"
}

# The program alone, for the commands that only run it: neither GoogleTest nor Python is needed.
build_program() {
  mkdir -p "$state"
  require "${needs_program[@]}"
  build_preset cpu -DFLASHMLA_BUILD_TESTS=OFF flashmla_cli
}

command_demo() {
  build_program
  [[ " $*" == *" --out"* ]] || set -- --out build/demo "$@"
  [[ " $*" == *" --model"* ]] || set -- --model models/demo "$@"
  "$program" demo "$@"
}

command_bench() {
  build_program
  if [[ $# -eq 0 ]]; then set -- decode; fi
  "$program" bench "$@"
}
