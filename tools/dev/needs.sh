# What the machine must have, and its installation with apt-get. Sourced.
#
# A need is "PROBE PACKAGE": a probe that tells whether it is there, however it came, and the Debian package to install.

needs_program=(
  "command:${CXX:-g++} g++"
  "command:cmake cmake"
  "command:ninja ninja-build"
  "header:CLI/CLI.hpp libcli11-dev"
  "header:fmt/core.h libfmt-dev"
  "header:nlohmann/json.hpp nlohmann-json3-dev"
  "header:pcre2.h libpcre2-dev"
  "command:pkg-config pkg-config"
)
needs_build=(
  "${needs_program[@]}"
  "header:gtest/gtest.h libgtest-dev"
  "header:gmock/gmock.h libgmock-dev"
  "command:${PYTHON:-python3} python3"
)
needs_python=(
  "python:venv python3-venv"
  "python:headers python3-dev"
  "file:/etc/ssl/certs/ca-certificates.crt ca-certificates"
)

python=${PYTHON:-python3}

have() {
  local kind=${1%%:*} what=${1#*:}
  case $kind in
    command) command -v "$what" >/dev/null ;;
    file) [[ -e $what ]] ;;
    header)
      local dir include_path=${CPATH-}:${CPLUS_INCLUDE_PATH-}
      for dir in ${include_path//:/ } /usr/local/include /usr/include; do
        [[ -e $dir/$what ]] && return 0
      done
      return 1 ;;
    python)
      command -v "$python" >/dev/null || return 1
      if [[ $what == venv ]]; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null
      else
        "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
      fi ;;
  esac
}

# require NEED...: installs what is missing, or says how to.
require() {
  local need missing=()
  for need in "$@"; do
    have "${need% *}" || missing+=("${need##* }")
  done
  [[ ${#missing[@]} -eq 0 ]] && return 0
  local install=(apt-get install -y --no-install-recommends "${missing[@]}")
  command -v apt-get >/dev/null ||
    die "missing: ${missing[*]} (Debian's names). There is no apt-get here: install them with this system's package manager"
  [[ $(id -u) -eq 0 ]] || die "missing: ${missing[*]}. Run: sudo ${install[*]}"
  apt_install "${missing[@]}"
}

# Debian packages; from *.deb files when a wheelhouse holds some. Sizes are apt's own, printed before it downloads.
apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  local log=$state/apt.log options=(--no-install-recommends -o Dpkg::Use-Pty=0)
  mkdir -p "$state"
  if [[ -n $wheelhouse ]] && compgen -G "$wheelhouse/*.deb" >/dev/null; then
    say "Debian packages to install from $wheelhouse ($(du -shc "$wheelhouse"/*.deb | tail -n 1 | cut -f 1)): $*"
    dpkg --install --skip-same-version --refuse-downgrade "$wheelhouse"/*.deb >"$log" 2>&1 || apt_failed "$log" "$*"
    return
  fi
  say "reading Debian's package lists (about 9 MB)"
  apt-get update -qq >"$log" 2>&1 || true  # one dead source need not matter; what does will fail below, by name
  say "Debian packages to install: $*"
  LC_ALL=C apt-get install --assume-no "${options[@]}" "$@" 2>/dev/null |
    sed -n -e 's/^Need to get/dev:   to download:/p' -e 's/^After this operation,/dev:   on disk:/p' || true
  apt-get install -y -qq "${options[@]}" "$@" >>"$log" 2>&1 || apt_failed "$log" "$*"
}

apt_failed() {
  local log=$1 what=$2
  grep -m 4 -E '^(E:|dpkg: error)' "$log" >&2 || tail -n 4 "$log" >&2
  die "could not install $what (log: $log). Without a network: put the .deb files of these packages
  and of what they depend on into a folder, and add --wheelhouse DIR"
}

# at_least VERSION MINIMUM
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

require_compiler() {
  local compiler=${CXX:-g++} version
  version=$("$compiler" -dumpfullversion 2>/dev/null || "$compiler" -dumpversion)
  case $("$compiler" --version | head -n 1) in
    *clang*) ;;
    *) at_least "$version" 11 || die "$compiler is version $version; g++ 11 or newer is needed (set CXX to one)" ;;
  esac
}
