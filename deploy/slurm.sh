#!/bin/bash
# A Ray cluster of the job's nodes, and `dvc repro` on the first of them: sbatch deploy/slurm.sh [COMMAND ...]
# Submit it in the checkout, which all nodes see, with its .venv (make setup). The job ends with the command's exit code.

#SBATCH --job-name=headstart
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
# Whole nodes: at its end `ray symmetric-run` stops every Ray that this user has on a node, of other jobs too.
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --output=headstart-%j.log
#SBATCH --open-mode=append
# Preempted, the job is queued again and goes on; two minutes before its time is over the script is told.
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

# shellcheck disable=SC2016,SC2329  # what is quoted is for a later shell; the functions are called by traps

set -euo pipefail
umask 077

(($#)) || set -- bash -c 'headstart doctor && exec dvc repro'
cd "$SLURM_SUBMIT_DIR"
if [[ -d .venv ]]; then
    PATH=$PWD/.venv/bin:$PATH
fi

# A token of this job's own, where its nodes, and only this user, can read it.
job_folder=$PWD/.headstart/slurm/$SLURM_JOB_ID
mkdir -p "$job_folder"
rm -f "$job_folder/exit_code"
python -c 'import secrets; print(secrets.token_hex(32))' >"$job_folder/token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$job_folder/token

export RAY_TMPDIR=/tmp/headstart-$SLURM_JOB_ID # of other users there may be a /tmp/ray
export RAY_USAGE_STATS_ENABLED=0 RAY_TRAIN_ENABLE_STATE_TRACKING=1
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=${RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT:-300}

on_each_node=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)

clean_up() {
    "${on_each_node[@]}" rm -rf "$RAY_TMPDIR" || true
    rm -rf "$job_folder"
}
trap clean_up EXIT

# Ended in order, so that neither Ray nor a lock of DVC's is left: the nodes may be the same ones again.
time_is_nearly_over() {
    echo "headstart: the job's time is nearly over; it is queued again, and goes on from the last checkpoint" >&2
    queue_again=1
    scancel --signal=INT "$SLURM_JOB_ID.0"
}
queue_again=
trap time_is_nearly_over USR1

# This script runs on the first node. Its name may stand for 127.0.1.1 there, so the others need its address.
head=${HEADSTART_HEAD_IP:-$(hostname -I | cut -d ' ' -f 1)}:6379

# The command knows its cluster; `ray start`, which comes before it, must not. The exit code goes by a file, as
# `ray symmetric-run` ends with 0 where Ray could not be started.
driver='RAY_ADDRESS=$1 "${@:3}"; echo $? >"$2"'

# --wait: when the command has ended, the other nodes notice only after a while that their head is gone.
"${on_each_node[@]}" --wait=30 \
    ray symmetric-run --address "$head" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "${SLURM_CPUS_PER_TASK:-1}" --dashboard-host 127.0.0.1 \
    -- bash -c "$driver" driver "$head" "$job_folder/exit_code" "$@" &
step=$!

# A signal ends `wait`, not the step.
while kill -0 "$step" 2>/dev/null; do
    wait "$step" || true
done

code=$(cat "$job_folder/exit_code" 2>/dev/null || true)
if [[ $queue_again && $code != 0 ]]; then
    clean_up # now: a job that waits in the queue has no nodes
    trap - EXIT
    scontrol requeue "$SLURM_JOB_ID"
    exit 1
fi
if [[ -z $code ]]; then
    echo "headstart: Ray did not start on all of the job's nodes, or was ended before the command was; see above" >&2
    exit 1
fi
exit "$code"
