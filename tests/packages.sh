#!/bin/sh
# Installs the Debian packages that some tests need, where that is possible; those tests skip otherwise and say why.
set -u
missing=""
for pair in chromium:chromium redis-server:redis-server promtool:prometheus amtool:prometheus-alertmanager zsh:zsh fish:fish tmux:tmux haproxy:haproxy; do
  command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "not installed, and this is not root on Debian:$missing (tests that need them skip)"
  exit 0
fi
echo "installing Debian packages for the tests:$missing"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
{ apt-get -q update && apt-get -q -y --no-install-recommends install $missing; } >/dev/null 2>&1 \
  || echo "could not be installed (tests that need them skip)"
exit 0
