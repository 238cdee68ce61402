#!/usr/bin/env bash
# Sees to it that there is a browser for the tests in one; says why not. Installing one is tried only where it
# asks for no password. Without a browser those tests are skipped; where CI is set, that is a failure.
set -u

found() { command -v "${CHROMIUM:-chromium}" >/dev/null || command -v google-chrome >/dev/null; }

# apt-get waits for dpkg's lock by itself, but not for that of the lists, which another one may hold.
install() {
  local attempt
  for attempt in 1 2 3 4; do
    [ "$attempt" = 1 ] || sleep 20
    if $1 apt-get update -qq </dev/null >/dev/null &&
      $1 env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -qq \
        --no-install-recommends chromium fonts-dejavu-core </dev/null >/dev/null; then
      return 0
    fi
  done
  return 1
}

why=""
if found; then
  exit 0
elif [ -n "${CHROMIUM:-}" ]; then
  why="$CHROMIUM, which CHROMIUM names, cannot be run"
elif ! command -v apt-get >/dev/null; then
  why="there is no apt-get to install one with"
elif [ "$(id -u)" = 0 ]; then
  sudo=""
elif sudo -n true 2>/dev/null; then
  sudo="sudo -n"
else
  why="installing one needs root"
fi
if [ -z "$why" ]; then
  echo "Installing Chromium for the tests in a browser"
  install "$sudo" || why="apt-get could not install one"
  [ -n "$why" ] || found || why="what apt-get installed cannot be run"
fi
[ -n "$why" ] || exit 0

if [ -n "${CI:-}" ]; then
  echo "No Chromium here, and $why; where CI is set, the tests in a browser must run." \
    "CHROMIUM=/path/to/chrome names one." >&2
  exit 1
fi
echo "No Chromium here, and $why: the tests in a browser are skipped. CHROMIUM=/path/to/chrome names one."
