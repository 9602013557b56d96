# The private Python environment .dev/venv and what is put into it. Sourced.

venv=$state/venv

require_venv() {
  require "${needs_python[@]}"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "$("$python" --version) is too old; Python 3.10 or newer is needed (set PYTHON to one)"
  local version
  version=$("$python" -c 'import sys; print(sys.version)')
  if [[ -x $venv/bin/python && $(cat "$venv/made-by" 2>/dev/null) == "$version" ]]; then return 0; fi
  say "making the Python environment .dev/venv (about 25 MB)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  printf '%s\n' "$version" >"$venv/made-by"
}

# pip_require NAME...: tools/requirements/NAME.txt into .dev/venv, unless it is there. The first line of each file
# states its size.
pip_require() {
  require_venv
  local name file stamp
  for name in "$@"; do
    file=tools/requirements/$name.txt
    stamp=$venv/has-$name.txt
    cmp -s "$file" "$stamp" && continue
    say "Python packages for '$name': $(grep -v '^#' "$file" | xargs): $(head -n 1 "$file" | sed 's/^# *//')"
    pip_install -r "$file"
    cp "$file" "$stamp"
  done
}

# pip_install ARGUMENTS...: into .dev/venv; from the wheelhouse when there is one.
pip_install() { pip_install_with "$venv/bin/python" "$@"; }

pip_install_with() {
  local interpreter=$1 log=$state/pip.log source=()
  shift
  [[ -n $wheelhouse ]] && source=(--no-index --find-links "$wheelhouse")
  "$interpreter" -m pip install --disable-pip-version-check --progress-bar off ${source[@]+"${source[@]}"} "$@" \
    >"$log" 2>&1 || pip_failed "$log" "$*"
}

# Names the file that pip was at when it failed: the last requirement or download that its log speaks of.
pip_failed() {
  local log=$1 what=$2 at
  tail -n 15 "$log" >&2
  at=$(sed -n -e 's/.*No matching distribution found for \([^ ]*\).*/\1/p' \
    -e 's/^ *\(Downloading\|Collecting\) \([^ ]*\).*/\2/p' "$log" | tail -n 1)
  die "pip could not install ${at:-$what} (log: $log). Without a network: collect the files where there is one,
  '${what/-r /python3 -m pip download --dest DIR -r }', and add --wheelhouse DIR"
}

# Puts a CMake of 3.25 or newer first in PATH.
require_cmake() {
  local minimum=3.25 version
  version=$(cmake --version | sed -n 's/^cmake version //p')
  at_least "$version" "$minimum" && return 0
  say "cmake is version $version; $minimum or newer is needed"
  pip_require cmake
  PATH=$venv/bin:$PATH
}

# install_package CUDA: this checkout's Python package into .dev/venv, with the CUDA kernels (ON) or without (OFF).
install_package() {
  local log=$state/pip-build.log
  require_cmake
  say "pip install . (compiles the Python module)"
  # Named as CMake names them by itself: under another name the cache would not know its own work.
  CC=${CC:-cc} CXX=${CXX:-c++} "$venv/bin/python" -m pip install --disable-pip-version-check --no-build-isolation \
    --no-deps --force-reinstall --config-settings=build-dir="$state/python-build" \
    --config-settings=cmake.define.FLASHMLA_CUDA="$1" . >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    die "the Python package could not be built (log: $log)"
  }
}
