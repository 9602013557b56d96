# Messages of ./dev. Sourced.

say() { printf 'dev: %s\n' "$*"; }

die() {
  trap - ERR
  printf 'dev: error: %s\n' "$*" >&2
  exit 1
}

# The last line of a failed run names what failed. Only the innermost shell speaks: an outer one would repeat it.
on_error() {
  local status=$1 what=$2
  trap - ERR
  if ((BASH_SUBSHELL == 0)); then printf 'dev: error: exit code %d from: %s\n' "$status" "$what" >&2; fi
  exit "$status"
}
trap 'on_error $? "$BASH_COMMAND"' ERR

# no_more_arguments COMMAND "$@": dies when arguments are left.
no_more_arguments() {
  local command=$1
  shift
  [[ $# -eq 0 ]] || die "'$command' does not take '$1'; see ./dev help"
}

# 1m05s
duration() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }
