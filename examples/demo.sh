#!/bin/bash
# An experiment from beginning to end on the embedded cloud: a git repo, `berg run`, results in a bucket.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
# A home of its own: whose settings for git, gcloud or berg these are must not matter.
unset ${!BERG_*} ${!CLOUDSDK_*} ${!GIT_*} ${!GOOGLE_*}
export HOME=$PWD/.demo/home BERG_HOME=$PWD/.demo/berg PATH=$PWD/.venv/bin:$PATH GIT_CONFIG_NOSYSTEM=1
mkdir -p "$HOME"
results=demo/digits

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

show() { # COMMAND…: say it as one would type it, then do it
    printf '\n%s$' "$bold" && printf ' %q' "$@" && printf '%s\n' "$plain"
    "$@"
}

show berg init --local -y

# The example becomes a repo of its own, as a researcher's would be.
rm -rf .demo/digits
cp -r examples/digits .demo/digits
cd .demo/digits
git init -q -b main
git add -A
git -c user.name=demo -c user.email=demo@localhost commit -q -m 'Train on the digits'

job=digits-demo-$(date +%H%M%S)
show berg run -n "$job" --tail "python train.py --epochs=30 --logdir=/root/berg_results/$results"
show berg list --limit 3
show berg fetch "$job" ../results

printf '\nIn the bucket:\n'
berg show "$job" --json | python -c '
import json, sys
for each in json.load(sys.stdin)["results"]:
    print("{:>10,}  {}{}".format(each["bytes"], sys.argv[1], each["path"]))
' "gs://$(berg config get bucket)/berg_results/$results/"
printf '\n%s\n' "$(berg log "$job" | grep 'final test accuracy')"
berg local stop -y
echo "To look around: export BERG_HOME=$BERG_HOME PATH=$top/.venv/bin:\$PATH; berg list"
