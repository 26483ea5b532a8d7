#!/usr/bin/env bash
# Fetch Debian's wrk (load generator) and etcd-server (to compare with) and unpack them under .cache/bench/, without installing
# anything. Prints the folder that holds both programs. A second run returns at once. Exit 1 when they cannot be had.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

home="$root/.cache/bench"

finish() {
  wrap wrk usr/bin/wrk
  wrap etcd usr/bin/etcd
}

if [[ ! -x "$home/bin/wrk" || ! -x "$home/bin/etcd" ]]; then
  fetch "$home" wrk etcd-server libluajit-5.1-2
  "$home/bin/etcd" --version >&2 || { rm -rf "$home"; fail "the unpacked etcd does not start"; }
fi
echo "$home/bin"
