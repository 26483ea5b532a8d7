# Sourced by the scripts beside it: unpacks Debian packages into a folder under .cache/, without installing anything.
# Needs a Debian or Ubuntu with apt-get and dpkg.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
me=$(basename "$0" .sh)

say() { echo "$me: $*" >&2; }
fail() { say "$*"; exit 1; }

# fetch HOME PACKAGE...: downloads the packages, those first that the release knows, and unpacks them into HOME/tree.
# HOME comes into being whole or not at all; `finish` of the caller runs in between, with the tree at $work/tree.
fetch() {
  local home=$1
  shift
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "needs apt-get and dpkg (Debian or Ubuntu)"
  mkdir -p "$root/.cache"
  work=$(mktemp -d "$root/.cache/$me.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/packages" "$work/tree" "$work/bin"
  chmod 755 "$work"
  if ! apt-cache show "$1" >/dev/null 2>&1; then
    say "apt does not know $1 yet: apt-get update"
    apt-get update -q >&2 || fail "apt-get update failed"
    apt-cache show "$1" >/dev/null 2>&1 || fail "this release has no $1"
  fi
  say "fetching $*"
  # apt fetches as an unprivileged user where it can; a folder of root's makes it warn, and that is all.
  (cd "$work/packages" && apt-get download -q "$@" >&2) || fail "apt-get download failed"
  local package
  for package in "$work"/packages/*.deb; do
    dpkg -x "$package" "$work/tree"
  done
  mapfile -t libraries < <(cd "$work" && find tree -name '*.so*' -printf '%h\n' | grep "linux-gnu$" | sort -u)
  finish
  rm -rf "$home" "$work/packages"
  mv "$work" "$home"
  trap - EXIT
}

# wrap NAME PROGRAM: a script bin/NAME that runs tree/PROGRAM with the unpacked libraries, wherever the folder is by then; exec
# keeps the pid.
wrap() {
  local folders
  folders=$(printf ':$home/%s' "${libraries[@]}")
  cat >"$work/bin/$1" <<WRAPPER
#!/usr/bin/env bash
home=\$(cd "\$(dirname "\$(readlink -f "\$0")")/.." && pwd)
export LD_LIBRARY_PATH="${folders:1}\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "\$home/tree/$2" "\$@"
WRAPPER
  chmod 755 "$work/bin/$1"
}
