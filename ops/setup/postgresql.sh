#!/usr/bin/env bash
# Fetch Debian's PostgreSQL 15 with its libraries and unpack it under .cache/postgresql/, without installing anything.
# Prints the folder that holds postgres, initdb, pg_ctl and psql. A second run returns at once. Exit 1 when it cannot be had.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

home="$root/.cache/postgresql"
packages=(
  postgresql-15 postgresql-client-15 libpq5 libxml2 libicu72 libldap-2.5-0 libsasl2-2 libgssapi-krb5-2 libkrb5-3
  libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libssl3 liblz4-1 libzstd1 libxslt1.1 libpam0g libaudit1
  libcap-ng0 libgnutls30 libp11-kit0 libffi8 libidn2-0 libunistring2 libtasn1-6 libnettle8 libhogweed6 libgmp10
  libsystemd0 libgcrypt20 libgpg-error0 libcap2 libreadline8
)

finish() {
  local name
  for name in postgres initdb pg_ctl pg_basebackup psql; do
    wrap "$name" "usr/lib/postgresql/15/bin/$name"
  done
}

if [[ ! -x "$home/bin/postgres" ]]; then
  fetch "$home" "${packages[@]}"
  "$home/bin/postgres" --version >&2 || { rm -rf "$home"; fail "the unpacked postgres does not start"; }
fi
echo "$home/bin"
