# ./dev peers: decode beside other libraries, from this checkout's own package. Sourced.

command_peers() {
  local cuda=OFF
  mkdir -p "$state"
  require "${needs_build[@]}"
  pip_require python-build plot torch
  if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then cuda=ON; fi
  install_package "$cuda"
  "$venv/bin/python" -m flashmla.peers "$@"
}
