# ./dev wheel. Sourced.

command_wheel() { die "not yet"; }
