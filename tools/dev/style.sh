# ./dev fmt and ./dev tidy. Sourced.

# What git tracks or would track, so that build folders stay out.
cpp_sources() { git ls-files --cached --others --exclude-standard -- "$@"; }

command_fmt() {
  local mode=(-i)
  if [[ ${1:-} == --check ]]; then
    mode=(--dry-run --Werror)
    shift
  fi
  no_more_arguments fmt "$@"
  pip_require fmt
  require "command:git git"
  cpp_sources '*.h' '*.cc' '*.cpp' '*.c' '*.cu' '*.cuh' | xargs "$venv/bin/clang-format" "${mode[@]}" ||
    die "sources above differ from clang-format's form; ./dev fmt mends them"
}

command_tidy() {
  no_more_arguments tidy "$@"
  mkdir -p "$state"
  require "${needs_build[@]}" "command:clang-tidy clang-tidy" "command:git git"
  build_preset cpu -DFLASHMLA_BUILD_TESTS=ON
  # g++ judges shadowing in the build, by other rules than clang.
  cpp_sources 'src/*.cc' 'cli/*.cc' 'cases/*.cc' |
    xargs -P "$jobs" -n 1 clang-tidy -p build/cpu --quiet --extra-arg=-Wno-shadow \
      --extra-arg=-Wno-unknown-warning-option ||
    die "clang-tidy has findings (above)"
}
