# Sourced by a training job's script before srun: sources the site's own script, and ends the job if that fails.
#
# Variables: rolloutbench_setup (the script), rolloutbench_run (the run's folder), rolloutbench_end (the start of
# end.json). A command of the script that fails or is not found ends the job, and so does `exit`: a run must not train in
# an incomplete environment. `set -e` would also apply inside the functions that `module` and `conda` consist of, where
# commands may fail harmlessly; functions do not inherit an ERR trap.
# This is no function: a `declare` in the script would then have no effect.
rolloutbench_log=$rolloutbench_run/setup.log
# With `set -x` a script prints what it exports.
install -m 600 /dev/null "$rolloutbench_log"
# After a signal Slurm reports the reason.
trap 'exit 143' TERM
trap 'rolloutbench_code=$? rolloutbench_line=$LINENO
  echo "line $rolloutbench_line: $BASH_COMMAND: exit code $rolloutbench_code" >>"$rolloutbench_log"
  exit "$rolloutbench_code"' ERR
trap 'rolloutbench_code=$?
  if [ "$rolloutbench_code" -le 128 ]; then
    printf "%s, \"code\": %d, \"time\": %d, \"nodes\": \"%s\"}\n" "$rolloutbench_end" "$rolloutbench_code" "$(date +%s)" \
      "${SLURMD_NODENAME:-}" >"$rolloutbench_run/.end.json" && mv "$rolloutbench_run/.end.json" "$rolloutbench_run/end.json"
  fi' EXIT
source "$rolloutbench_setup" >"$rolloutbench_log" 2>&1
trap - TERM ERR EXIT
unset "${!rolloutbench_@}"
