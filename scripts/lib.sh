# shellcheck shell=bash
# What the scripts share: where things are, and steps that show how far they are. Source it with `set -euo pipefail`.

TERRACE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TERRACE_CACHE=$TERRACE_ROOT/.cache
# Debian's own: another Python may come first in PATH and lack what we ask Debian for.
# shellcheck disable=SC2034
PYTHON=/usr/bin/python3
# shellcheck disable=SC2034
JOBS=$(nproc)
TERRACE_LOGS=$TERRACE_CACHE/logs
mkdir -p "$TERRACE_LOGS"

# Objects are shared between check-outs, and the cache works where there is no home directory. Its size is the user's
# choice (ccache's default, 5 GB, holds every preset many times over).
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$TERRACE_ROOT}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
if [[ -z ${CCACHE_DIR:-} && ! -w ${HOME:-/nonexistent} ]]; then
  export CCACHE_DIR=$TERRACE_CACHE/ccache
fi

# Lines for people go to stderr, so that a script's stdout is its result.
say() { printf '%s\n' "$*" >&2; }

die() {
  say "${0##*/}: $*"
  exit 1
}

# 75 -> 1:15
format_seconds() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# How far a command is, read from its log: "done total", or nothing if it does not say.
progress_ninja() { tail -c 4000 "$1" 2>/dev/null | grep -oE '^\[[0-9]+/[0-9]+\]' | tail -n 1 | tr -d '[]' | tr / ' ' || true; }
progress_none() { :; }
# In MB: what lies under DOWNLOAD_DIR, against DOWNLOAD_MB.
progress_download() {
  local kb
  kb=$(du -sk "$DOWNLOAD_DIR" 2>/dev/null | cut -f 1) || true
  local mb=$((${kb:-0} / 1000))
  # What is unpacked beside it counts too: never more than there is to fetch.
  echo "$((mb < DOWNLOAD_MB ? mb : DOWNLOAD_MB)) $DOWNLOAD_MB MB"
}

STEP_PID=
stop_step() {
  trap - INT TERM HUP
  if [[ -n $STEP_PID ]]; then
    kill -TERM -- "-$STEP_PID" 2>/dev/null || true
    wait "$STEP_PID" 2>/dev/null || true
  fi
  say ""
  say "${0##*/}: interrupted; run it again to go on from here"
  exit 130
}

# step NAME LOG PROGRESS COMMAND...: runs COMMAND with its output in LOG. From the second second on it shows what runs,
# how far it is (PROGRESS: one of the functions above) and for how long: on a terminal in one line that changes, else
# in a line every 15 s. A failure shows the end of LOG and returns the command's status. The command has no stdin, and
# a process group of its own, so that an interrupted script leaves nothing running.
step() {
  # Underscores, since COMMAND may be a function and would see these names instead of the script's own.
  local _name=$1 _log=$2 _progress=$3
  shift 3
  local _start=$SECONDS _elapsed=0 _shown=-15 _line _at _total _unit _left _width _status=0
  mkdir -p "$(dirname "$_log")"
  : >"$_log"
  trap stop_step INT TERM HUP
  set -m
  "$@" >"$_log" 2>&1 </dev/null &
  STEP_PID=$!
  set +m
  while kill -0 "$STEP_PID" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - _start == _elapsed)); then continue; fi
    _elapsed=$((SECONDS - _start))
    if ((_elapsed < 2)); then continue; fi
    if [[ ! -t 2 ]] && ((_elapsed - _shown < 15)); then continue; fi
    _shown=$_elapsed
    _line="  $_name"
    read -r _at _total _unit < <("$_progress" "$_log") || true
    if [[ -n ${_total:-} ]]; then
      _line+="  $_at/$_total${_unit:+ $_unit}"
    fi
    _line+="  $(format_seconds $_elapsed)"
    if [[ -n ${_total:-} ]] && ((_at > 0 && _at < _total && _elapsed >= 5)); then
      _left=$((_elapsed * (_total - _at) / _at))
      _line+=", about $(format_seconds $_left) left"
    fi
    if [[ -t 2 ]]; then
      _width=$(tput cols 2>/dev/null || echo 80)
      printf '\r\033[K%s' "${_line:0:_width-1}" >&2
    else
      say "$_line"
    fi
  done
  wait "$STEP_PID" || _status=$?
  STEP_PID=
  trap - INT TERM HUP
  _elapsed=$((SECONDS - _start))
  if [[ -t 2 ]] && ((_elapsed >= 2)); then printf '\r\033[K' >&2; fi
  if ((_status != 0)); then
    say "  $_name: FAILED after $(format_seconds $_elapsed) (exit status $_status). The end of $_log:"
    tail -n 30 "$_log" | sed 's/^/    /' >&2
    say "  all of it: $_log"
  elif ((_elapsed >= 2)); then
    say "  $_name: done in $(format_seconds $_elapsed)"
  fi
  return "$_status"
}

# take_lock FILE WHAT: waits until no other run of the same script is at work. Held until this process and the
# commands that it started end.
take_lock() {
  mkdir -p "$(dirname "$1")"
  exec 9>"$1"
  if ! flock -n 9; then
    say "  $2: another run is at it, waiting for it to end"
    flock 9
  fi
}

# need_disk DIR MB WHAT
need_disk() {
  local free
  mkdir -p "$1"
  free=$(df --output=avail -m "$1" | tail -n 1)
  if ((free < $2)); then
    die "$3 needs $2 MB of free disk space, but $1 has ${free// /} MB left. Free some and run this again."
  fi
}

# has_sha256 FILE DIGEST
has_sha256() { [[ -f $1 ]] && echo "$2  $1" | sha256sum --check --status; }
