#!/usr/bin/env bash
# Fetch Debian's Redis 7.0 (server, sentinel, tools) with its libraries and unpack it under .cache/redis-7.0/, without
# installing anything. Prints the folder that holds redis-server, redis-sentinel and redis-cli. A second run returns at once.
# Exit 1 when it cannot be had, or the release holds no Redis 7.0.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

home="$root/.cache/redis-7.0"

# The kind of server is told by the name it was called by, which the wrapped path ends with.
finish() {
  local name
  for name in redis-server redis-sentinel redis-cli redis-benchmark redis-check-aof redis-check-rdb; do
    wrap "$name" "usr/bin/$name"
  done
}

if [[ ! -x "$home/bin/redis-server" ]]; then
  fetch "$home" redis-server redis-sentinel redis-tools libjemalloc2 liblzf1 libatomic1
  version=$("$home/bin/redis-server" --version) || { rm -rf "$home"; fail "the unpacked redis-server does not start"; }
  [[ "$version" == *"v=7.0."* ]] || { rm -rf "$home"; fail "this release offers $version, not 7.0"; }
fi
echo "$home/bin"
