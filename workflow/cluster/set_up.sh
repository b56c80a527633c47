# Sourced by a training job's script ahead of srun: sources the site's own script, and ends the job if that fails.
#
# Told by variables: rolloutbench_setup (the script), rolloutbench_job (the folder jobs/<k>) and rolloutbench_end (the
# beginning of end.json). A command in the script that fails, is not found, or an `exit` ends the job: a run must not
# train on half an environment. `set -e` would say the same and reach into the functions that `module` and `conda` are
# made of, where commands fail that nobody need know of; an ERR trap is not inherited by functions.
# Not in a function itself, since `declare` in the script would then be of no effect.
rolloutbench_log=$rolloutbench_job/setup.log
# By a signal: what for is Slurm's to say.
trap 'exit 143' TERM
trap 'rolloutbench_code=$? rolloutbench_line=$LINENO
  echo "line $rolloutbench_line: $BASH_COMMAND: exit code $rolloutbench_code" >>"$rolloutbench_log"
  exit "$rolloutbench_code"' ERR
trap 'rolloutbench_code=$?
  if [ "$rolloutbench_code" -le 128 ]; then
    printf "%s, \"code\": %d, \"time\": %d}\n" "$rolloutbench_end" "$rolloutbench_code" "$(date +%s)" \
      >"$rolloutbench_job/.end.json" && mv "$rolloutbench_job/.end.json" "$rolloutbench_job/end.json"
  fi' EXIT
source "$rolloutbench_setup" >"$rolloutbench_log" 2>&1
trap - TERM ERR EXIT
unset "${!rolloutbench_@}"
