#!/usr/bin/env bash
# Fetch Debian's MariaDB with its libraries and unpack it under .cache/mariadb/, without installing anything.
# Prints the folder that holds mariadbd and mariadb-install-db. A second run returns at once. Exit 1 when it cannot be had.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

home="$root/.cache/mariadb"
packages=(
  mariadb-server-core mariadb-server mariadb-client-core libmariadb3 libaio1 liburing2 libnuma1 libpcre2-8-0 libcrypt1
  libssl3 libsystemd0 libcap2 libgcrypt20 libgpg-error0 liblzma5 libzstd1 liblz4-1 libedit2 libbsd0 libmd0
)

finish() {
  wrap mariadbd usr/sbin/mariadbd
  wrap mariadb usr/bin/mariadb
  wrap mariadb-install-db usr/bin/mariadb-install-db
}

if [[ ! -x "$home/bin/mariadbd" ]]; then
  fetch "$home" "${packages[@]}"
  "$home/bin/mariadbd" --version >&2 || { rm -rf "$home"; fail "the unpacked mariadbd does not start"; }
fi
echo "$home/bin"
