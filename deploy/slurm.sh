#!/bin/bash
# Starts a Ray cluster on the job's nodes and runs `dvc repro` on the first: sbatch deploy/slurm.sh [COMMAND ...]
# Submit it in a checkout that all nodes see, with its .venv (make setup). The job exits with the command's code.

#SBATCH --job-name=headstart
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
# Whole nodes: `ray symmetric-run` ends by stopping every Ray of this user on a node, also those of other jobs.
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --output=headstart-%j.log
#SBATCH --open-mode=append
# A preempted job is requeued and resumes; the script gets a signal two minutes before its time limit.
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

# shellcheck disable=SC2016,SC2329  # a later shell expands what is quoted; traps call the functions

set -euo pipefail
umask 077

(($#)) || set -- bash -c 'headstart doctor && exec dvc repro'
cd "$SLURM_SUBMIT_DIR"
if [[ -d .venv ]]; then
    PATH=$PWD/.venv/bin:$PATH
fi

# The job's own token, in a file that its nodes can read and other users cannot.
job_folder=$PWD/.headstart/slurm/$SLURM_JOB_ID
mkdir -p "$job_folder"
rm -f "$job_folder/exit_code"
python -c 'import secrets; print(secrets.token_hex(32))' >"$job_folder/token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$job_folder/token

export RAY_TMPDIR=/tmp/headstart-$SLURM_JOB_ID # /tmp/ray may belong to another user
export RAY_USAGE_STATS_ENABLED=0 RAY_TRAIN_ENABLE_STATE_TRACKING=1
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=${RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT:-300}

on_each_node=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)

clean_up() {
    "${on_each_node[@]}" rm -rf "$RAY_TMPDIR" || true
    rm -rf "$job_folder"
}
trap clean_up EXIT

# A clean end leaves no Ray and no lock of DVC's behind: the requeued job may get the same nodes.
time_is_nearly_over() {
    echo "headstart: the job's time is nearly over; it is requeued and resumes from the last checkpoint" >&2
    queue_again=1
    scancel --signal=INT "$SLURM_JOB_ID.0"
}
queue_again=
trap time_is_nearly_over USR1

# This script runs on the first node. Its name may resolve to 127.0.1.1 there, so the others need its address.
head=${HEADSTART_HEAD_IP:-$(hostname -I | cut -d ' ' -f 1)}:6379

# The command needs RAY_ADDRESS; `ray start`, which runs before it, must not see it. The exit code is passed in a
# file, because `ray symmetric-run` exits with 0 if Ray did not start.
driver='RAY_ADDRESS=$1 "${@:3}"; echo $? >"$2"'

# --wait: after the command has ended, the other nodes take a while to notice that their head is gone.
"${on_each_node[@]}" --wait=30 \
    ray symmetric-run --address "$head" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "${SLURM_CPUS_PER_TASK:-1}" --dashboard-host 127.0.0.1 \
    -- bash -c "$driver" driver "$head" "$job_folder/exit_code" "$@" &
step=$!

# A signal interrupts `wait`, but not the step.
while kill -0 "$step" 2>/dev/null; do
    wait "$step" || true
done

code=$(cat "$job_folder/exit_code" 2>/dev/null || true)
if [[ $queue_again && $code != 0 ]]; then
    clean_up # before requeuing: a job in the queue has no nodes
    trap - EXIT
    scontrol requeue "$SLURM_JOB_ID"
    exit 1
fi
if [[ -z $code ]]; then
    echo "headstart: Ray did not start on all of the job's nodes, or stopped before the command ended; see above" >&2
    exit 1
fi
exit "$code"
