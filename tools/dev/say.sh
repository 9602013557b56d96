# Messages of ./dev. Sourced.

say() { printf 'dev: %s\n' "$*"; }

die() {
  explained=1
  printf 'dev: error: %s\n' "$*" >&2
  exit 1
}

# A failed run ends with a line that says what failed, also where no `die` foresaw it. Subshells leave that to the shell
# around them.
explained=0
failed_command=""
trap 'failed_command=$BASH_COMMAND' ERR
trap 'on_exit $?' EXIT
on_exit() {
  local status=$1
  if ((status == 0 || explained || BASH_SUBSHELL > 0)); then return; fi
  printf 'dev: error: exit code %d%s\n' "$status" "${failed_command:+ from: $failed_command}" >&2
}

# no_more_arguments COMMAND "$@": dies when arguments are left.
no_more_arguments() {
  local command=$1
  shift
  [[ $# -eq 0 ]] || die "'$command' does not take '$1'; see ./dev help"
}

# 1m05s
duration() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }
