#!/usr/bin/env bash
# Run a frozen experiment whole on a machine of its own, from a copy of the checkout that has no git history:
#
#     scripts/registered_elsewhere.sh ID RESULTS [hydra/launcher=joblib hydra.launcher.n_jobs=3 ...]
#
# Pins what this machine has (an operational amendment), activates, settles constants that are measured before the run
# (an amendment each), launches every arm, opens every read, says the verdict, and leaves RESULTS/ID.tar.gz with the
# folder of the experiment and the logs of its runs, also if it fails. It may be started again after it was interrupted:
# what is done stays done. An arm that fails or stops itself ends it before any read. VIDEOS=10200,10203 adds films, which
# need the policies that only this machine has. On the machine where the experiment was frozen, unpack the results
# somewhere and
#
#     vla-rl prereg import ID --from UNPACKED/experiments/ID
#
# vla_rl has to be importable (docs/offline.md). Checklists are not ticked here: activate such an experiment before.
set -euo pipefail
id=$1 results=$2
shift 2
folder=experiments/$id
vla_rl() { "${PYTHON:-python3}" -m vla_rl.cli.main "$@"; }
commit() { git add -A && { git diff --cached --quiet || git commit -qm "$1"; }; }
has() { grep -q "\"event\":\"$1\"" "$folder/ledger.jsonl"; }

# Whatever happens: this machine and what it has played may be gone afterwards.
pack() {
    mkdir -p "$results" "outputs/prereg/$id"
    find "outputs/prereg/$id" \( -name '*.jsonl' -o -name config.yaml -o -name manifest.json -o -name '*.log' \) |
        tar czf "$results/$id.tar.gz" "$folder" -T -
    echo "wrote $results/$id.tar.gz"
}

if ! git rev-parse --git-dir >/dev/null 2>&1; then
    git init -q
    git config user.name "${NAME:-$(id -un)}" && git config user.email "${EMAIL:-nobody@localhost}"
    commit "A copy of the checkout"
fi
if ! grep -q "$(cat /proc/sys/kernel/random/boot_id)" "$folder/ledger.jsonl"; then # nothing was launched here yet
    # A machine that differs in nothing has nothing to pin; what is wrong is told by the launch.
    seen=none
    if has launched; then seen=training; fi
    if has look; then seen=outcomes; fi
    vla_rl prereg amend "$id" --repin --kind operational --data-seen "$seen" \
        --reason "launched on another machine: its packages, and its code if that has changed since" || true
    commit "Pin this machine"
fi
has activated || vla_rl prereg activate "$id"
trap pack EXIT
while read -r constant read; do
    if ! grep -qsx "settles: $constant" "$folder"/amendments/*.yaml; then
        vla_rl prereg read "$id" "$read"
        vla_rl prereg amend "$id" --settle "$constant" --kind operational --data-seen outcomes --reason "$read is read"
        commit "Settle $constant"
    fi
done < <("${PYTHON:-python3}" - "$folder/registration.yaml" <<'PY'
import sys, yaml
registration = yaml.safe_load(open(sys.argv[1]))
for constant in registration["deferred"]:
    if constant["by"] == registration["ladder"][0]["id"]:  # others wait for a rung before theirs
        print(constant["id"], constant["read"])
PY
)
vla_rl sweep "$id" "$@"
commit "Launched"
for read in $("${PYTHON:-python3}" - "$folder/registration.yaml" <<'PY'
import sys, yaml
print(*[read["id"] for read in yaml.safe_load(open(sys.argv[1]))["reads"]])
PY
); do
    vla_rl prereg read "$id" "$read"
done
has verdict || vla_rl prereg verdict "$id"
if [ -n "${VIDEOS:-}" ]; then vla_rl prereg report "$id" --videos "$VIDEOS"; fi
