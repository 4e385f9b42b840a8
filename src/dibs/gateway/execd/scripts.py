"""What is done inside a sandbox, in the shell that is there: dash, bash or busybox, with coreutils or busybox.

`script_runner` runs these texts with `sh -c`; a client's words are positional parameters, never part of a text.
So a name may hold quotes, line ends, dashes or bytes that are no characters, and a path leads nowhere but where it
leads inside the sandbox: nothing is resolved outside of it.

What a script has to say to the gateway it says on its error stream, in lines that begin with `dibs:`; a failure of the
tools comes in their own words. The scripts that end in a command of the client (`COMMAND`, `SHELL_RUN`) greet first,
before anything else is said, so that the greeting cannot be forged by what the command says.

    dibs:hello PID GROUP START ENVS ROOM     START 0: it was not looked up, which takes a shell long; who is attached
                                             sends it its signals. ENVS 1: the variables' file follows, up to a line
                                             with the token that was given; then the script waits for shell code and
                                             the end of its input
    dibs:fail WORD [INDEX]                   missing, isdir, notdir, notfile, symlink, exists, denied, root, short, cwd,
                                             room, session, error
"""

from __future__ import annotations

_FAIL = r"""
fail() { printf '\ndibs:fail %s %s\n' "$1" "${2:-0}" >&2; exit 70; }
"""

# --- commands

_GREET = (
    _FAIL
    + r"""
dibs_token=$1 dibs_place=$2 dibs_cwd=$3; shift 3
dibs_r=
room() {
  dibs_u=$(id -u) || dibs_u=x
  for dibs_d in /tmp /dev/shm /var/tmp /run; do
    dibs_b=$dibs_d/.dibs-$dibs_place-$dibs_u
    if [ -d "$dibs_b" ] && [ ! -L "$dibs_b" ] && [ -O "$dibs_b" ]; then return 0; fi
  done
  for dibs_d in /tmp /dev/shm /var/tmp /run; do
    dibs_b=$dibs_d/.dibs-$dibs_place-$dibs_u
    if [ -w "$dibs_d" ] && (umask 077; mkdir "$dibs_b") 2>/dev/null; then return 0; fi
  done
  fail room
}
enter() {
  case $1 in
    '') return 0 ;;
    '~') set -- "${HOME:-/}" ;;
    '~/'*) set -- "${HOME:-/}/${1#??}" ;;
    /*) ;;
    *) set -- "./$1" ;;
  esac
  CDPATH= cd -- "$1" 2>/dev/null || fail cwd
}
look() { set -- ${dibs_s##*) }; dibs_g=$3 dibs_t=${20}; }
greet() {
  if [ -z "${EXECD_ENVS:-}" ]; then
    dibs_d=/tmp; [ -w /tmp ] || dibs_d=/dev/shm
    EXECD_ENVS=$dibs_d/.dibs-$dibs_place/env
  fi
  export EXECD_ENVS
  dibs_s= dibs_g=0 dibs_t=0 dibs_n=0
  if [ "$1" = found ]; then IFS= read -r dibs_s <"/proc/$$/stat" && look; fi
  if [ -f "$EXECD_ENVS" ] && [ -s "$EXECD_ENVS" ] && [ -r "$EXECD_ENVS" ]; then dibs_n=1; fi
}
hello() {
  printf 'dibs:hello %s %s %s %s %s\n' "$$" "$dibs_g" "$dibs_t" "$dibs_n" "$dibs_r" >&2
  dibs_code=
  if [ "$dibs_n" = 1 ]; then
    cat <"$EXECD_ENVS" >&2
    printf '\n%s\n' "$dibs_token" >&2
    dibs_code=$(cat)
    eval "$dibs_code"
  fi
}
"""
)

_RUN = r"""
if [ "$1" = shell ]; then
  if command -v bash >/dev/null 2>&1; then exec bash -c "$2" </dev/null; fi
  exec sh -c "$2" </dev/null
fi
shift
exec "$@" </dev/null
"""

# token, place, cwd, then "shell" and a text or "argv" and words
COMMAND = _GREET + 'enter "$dibs_cwd"; greet attached; hello\n' + _RUN

# As COMMAND, with a terminal or pipes that stay open: token, place, cwd, the text or nothing for a shell
TERMINAL = (
    _GREET
    + r"""
enter "$dibs_cwd"; greet found; dibs_n=0; hello
if [ -n "$1" ]; then
  if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi
  exec sh -c "$1"
fi
if command -v bash >/dev/null 2>&1; then exec bash -i; fi
exec sh -i
"""
)
# The same without a terminal: a shell that reads commands from its input.
PIPES = TERMINAL.replace("exec bash -i", "exec bash").replace("exec sh -i", "exec sh")

# The process of this script stays and watches over the command, which gets a session and a process group of its own.
# The starter hangs up when the command says that it is ready: before, that would end it, too. In the command's
# folder: log, sup (who watches), pid, exit, late.
# token, place, cwd, id, seconds or nothing, then as COMMAND
BACKGROUND_CHILD = (
    r"""
dibs_r=$1; shift
look() { set -- ${dibs_s##*) }; dibs_g=$3 dibs_t=${20}; }
dibs_s= dibs_g=0 dibs_t=0
IFS= read -r dibs_s <"/proc/$$/stat" && look
printf '%s %s %s\n' "$$" "$dibs_g" "$dibs_t" >"$dibs_r/pid.new" && mv "$dibs_r/pid.new" "$dibs_r/pid"
printf 'dibs:ready\n' >&3
exec 3>&- >>"$dibs_r/log" 2>&1
"""
    + _RUN
)
BACKGROUND = (
    _GREET
    + r"""
enter "$dibs_cwd"; room; greet found
dibs_r=$dibs_b/$1 dibs_wait=$2 dibs_child=$3; shift 3
(umask 077; mkdir "$dibs_r" && : >"$dibs_r/log") 2>/dev/null || fail room
printf '%s %s\n' "$$" "$dibs_t" >"$dibs_r/sup" || fail room
trap : HUP
hello
exec 3>&2 </dev/null >/dev/null 2>&1
dibs_own=; if command -v setsid >/dev/null; then dibs_own=setsid; fi
dibs_w=
trap '' HUP
if [ -n "$dibs_wait" ]; then
  (
    trap 'kill "$dibs_z"; exit 0' TERM
    sleep "$dibs_wait" & dibs_z=$!
    wait "$dibs_z"
    : >"$dibs_r/late"
    read -r dibs_p dibs_g dibs_t <"$dibs_r/pid" || exit 0
    if [ "$dibs_p" = "$dibs_g" ]; then kill -KILL "-$dibs_g"; else kill -KILL "$dibs_p"; fi
  ) & dibs_w=$!
fi
if [ -n "$dibs_own" ]; then trap : HUP; fi
$dibs_own sh -c "$dibs_child" sh "$dibs_r" "$@"
dibs_code=$?
trap '' HUP
printf '%s %s\n' "$dibs_code" "$(date +%s)" >"$dibs_r/exit.new" && mv "$dibs_r/exit.new" "$dibs_r/exit"
if [ -n "$dibs_w" ]; then kill "$dibs_w"; fi
"""
)

_STATE = r"""
look() { set -- ${s##*) }; t=${20}; }
here() { s= t=; { IFS= read -r s <"/proc/$1/stat"; } 2>/dev/null && look && [ "$t" = "$2" ]; }
state() {
  if [ -f "$r/exit" ]; then
    read -r code at <"$r/exit"; late=0; [ -f "$r/late" ] && late=1
    printf 'dibs:ended %s %s %s\n' "${code:-137}" "${at:-0}" "$late" >&2; return
  fi
  if { read -r a b <"$r/sup"; } 2>/dev/null && here "$a" "$b"; then printf 'dibs:running\n' >&2; return; fi
  if { read -r a g b <"$r/pid"; } 2>/dev/null && here "$a" "$b"; then printf 'dibs:running\n' >&2; return; fi
  if [ -f "$r/exit" ]; then state; return; fi
  if [ -d "$r" ]; then printf 'dibs:lost\n' >&2; else printf 'dibs:gone\n' >&2; fi
}
"""
STATUS = _STATE + "r=$1; state\n"
# folder, first line, most bytes
LOGS = _STATE + 'r=$1; state; [ -f "$r/log" ] && tail -n "+$2" "$r/log" | head -c "$3"\n'
# folder, signal: the process group of a background command; its pid is there soon after its start
STOP = (
    _STATE
    + r"""
r=$1 i=0
while [ ! -f "$r/pid" ] && [ ! -f "$r/exit" ] && [ -d "$r" ] && [ $i -lt 40 ]; do sleep 0.05; i=$((i + 1)); done
if [ ! -f "$r/exit" ] && { read -r a g b <"$r/pid"; } 2>/dev/null && here "$a" "$b"; then
  if [ "$a" = "$g" ]; then kill "-$2" "-$g"; else kill "-$2" "$a"; fi
fi
state
"""
)
# pid, group, start, signal: of a command in the foreground
KILL = (
    _STATE
    + r"""
if [ -d "/proc/$1" ] && ! here "$1" "$3"; then exit 0; fi
if [ "$1" = "$2" ]; then kill "-$4" "-$2" 2>/dev/null; else kill "-$4" "$1" 2>/dev/null; fi
exit 0
"""
)

# --- shells that keep their variables and their folder between runs

# token, place, cwd, id
SHELL_MAKE = (
    _GREET
    + r"""
enter "$dibs_cwd"; room
(umask 077; mkdir "$dibs_b/$1" && printf '%s' "$PWD" >"$dibs_b/$1/cwd") 2>/dev/null || fail room
"""
)
SHELL_END = _GREET + 'room; [ -d "$dibs_b/$1" ] || fail session; rm -rf "$dibs_b/$1"\n'
# In bash: variables, functions, aliases and options. The folder's name and the text are set after what was kept.
SHELL_BASH = r"""
if [ -f "$1/vars" ]; then . "$1/vars" 2>/dev/null; fi
__dibs_dir=$1 __dibs_text=$2 PWD=$4
eval "$3"
trap '{ __dibs_code=$? __dibs_set=$(set +o); set +xeu; } 2>/dev/null
{ declare -p; declare -f; shopt -p; alias -p; } >"$__dibs_dir/vars.new" 2>/dev/null
printf "%s\n" "$__dibs_set" >"$__dibs_dir/set.new"; printf "%s" "$PWD" >"$__dibs_dir/cwd.new"
for __dibs_one in vars set cwd; do mv -f "$__dibs_dir/$__dibs_one.new" "$__dibs_dir/$__dibs_one"; done
exit "$__dibs_code"' EXIT
set --
if [ -f "$__dibs_dir/set" ]; then . "$__dibs_dir/set" 2>/dev/null; fi
eval "$__dibs_text"
"""
SHELL_SH = r"""
if [ -f "$1/vars" ]; then . "$1/vars" 2>/dev/null; fi
__dibs_dir=$1 __dibs_text=$2 PWD=$4
eval "$3"
trap '__dibs_code=$?; { set +x; } 2>/dev/null; set +eu
{ set; export -p; } >"$__dibs_dir/vars.new"; pwd >"$__dibs_dir/cwd.new"
for __dibs_one in vars cwd; do mv -f "$__dibs_dir/$__dibs_one.new" "$__dibs_dir/$__dibs_one"; done
exit "$__dibs_code"' EXIT
set --
eval "$__dibs_text"
"""
# token, place, cwd, id, the text for bash, the text for sh, the client's text
SHELL_RUN = (
    _GREET
    + r"""
room; dibs_r=$dibs_b/$1
[ -d "$dibs_r" ] || fail session
if [ -n "$dibs_cwd" ]; then enter "$dibs_cwd"; else enter "$(cat "$dibs_r/cwd")"; fi
greet attached; hello
dibs_new=
if [ "$dibs_n" = 1 ] && [ "$EXECD_ENVS" -nt "$dibs_r/vars" ]; then dibs_new=$dibs_code; fi
if command -v bash >/dev/null 2>&1; then exec bash -c "$2" bash "$dibs_r" "$4" "$dibs_new" "$PWD" </dev/null; fi
exec sh -c "$3" sh "$dibs_r" "$4" "$dibs_new" "$PWD" </dev/null
"""
)

# --- files

_PATHS = (
    _FAIL
    + r"""
LC_ALL=C; export LC_ALL
i=0
abs() {
  case $1 in '~') p=${HOME:-/} ;; '~/'*) p=${HOME:-/}/${1#??} ;; /*) p=$1 ;; *) p=${PWD%/}/$1 ;; esac
  while :; do case $p in ?*/) p=${p%/} ;; *) break ;; esac; done
}
there() { [ -e "$p" ] || [ -L "$p" ]; }
parent() { d=${p%/*}; [ -n "$d" ] || d=/; }
own() {
  if [ -n "$2" ] && [ -n "$3" ]; then chown "$2:$3" "$1" || fail error $i
  elif [ -n "$2" ]; then chown "$2" "$1" || fail error $i
  elif [ -n "$3" ]; then chgrp "$3" "$1" || fail error $i; fi
}
"""
)
# What `fileinfo` reads: after the mark, fields, and the name as the last one.
STAT_FORMAT = "|%s|%a|%u|%g|%U|%G|%Y|%Z|%W|%F|%n"
# format, paths
INFO = (
    _PATHS
    + r"""
f=$1; shift
for a; do abs "$a"; there || fail missing $i; stat -c "$f" "$p" || fail error $i; i=$((i + 1)); done
"""
)
# format, path, depth
LIST = (
    _PATHS
    + r"""
abs "$2"; there || fail missing
if [ -L "$p" ]; then fail symlink; fi
[ -d "$p" ] || fail notdir
{ [ -r "$p" ] && [ -x "$p" ]; } || fail denied
exec find "$p" -mindepth 1 -maxdepth "$3" -exec stat -c "$1" {} +
"""
)
# format, path, pattern
SEARCH = (
    _PATHS
    + r"""
abs "$2"; [ -e "$p" ] || fail missing
if [ -d "$p" ]; then { [ -r "$p" ] && [ -x "$p" ]; } || fail denied; fi
exec find -H "$p" ! -type d -name "$3" -exec stat -c "$1" {} +
"""
)
# path, mode, owner, group; again and again
MKDIR = (
    _PATHS
    + r"""
while [ $# -gt 0 ]; do
  abs "$1"
  if [ ! -d "$p" ]; then
    mkdir -p "$p" || fail error $i
    if [ -n "$2" ]; then chmod "$2" "$p" || fail error $i; fi
    own "$p" "$3" "$4"
  fi
  shift 4; i=$((i + 1))
done
"""
)
CHMOD = (
    _PATHS
    + r"""
while [ $# -gt 0 ]; do
  abs "$1"; there || fail missing $i
  if [ -n "$2" ]; then chmod "$2" "$p" || fail error $i; fi
  own "$p" "$3" "$4"
  shift 4; i=$((i + 1))
done
"""
)
REMOVE = (
    _PATHS
    + r"""
for a; do
  abs "$a"
  if [ -d "$p" ] && [ ! -L "$p" ]; then fail isdir $i; fi
  if there; then rm -f "$p" || fail error $i; fi
  i=$((i + 1))
done
"""
)
REMOVE_TREE = (
    _PATHS
    + r"""
for a; do
  abs "$a"
  if [ -d "$p" ] && [ ! -L "$p" ] && [ "$(CDPATH= cd -- "$p" && pwd -P)" = / ]; then fail root $i; fi
  if there; then rm -rf "$p" || fail error $i; fi
  i=$((i + 1))
done
"""
)
# source, target; again and again
MOVE = (
    _PATHS
    + r"""
while [ $# -gt 0 ]; do
  abs "$1"; there || fail missing $i
  s=$p; abs "$2"
  if there; then fail exists $i; fi
  parent; [ -d "$d" ] || mkdir -p "$d" || fail error $i
  mv "$s" "$p" || fail error $i
  shift 2; i=$((i + 1))
done
"""
)
# path, "bytes" or "lines"; for bytes it tells the size and is told where to start and how many to give
READ = (
    _PATHS
    + r"""
abs "$1"; [ -e "$p" ] || fail missing
if [ -d "$p" ]; then fail isdir; fi
[ -f "$p" ] || fail notfile
[ -r "$p" ] || fail denied
n=$(stat -L -c %s "$p") || fail error
printf 'dibs:size %s\n' "$n" >&2
if [ "$2" = lines ]; then tail -n "+$3" "$p" | head -n "$4"; exit; fi
read -r a l || exit 1
if [ "$a" = 0 ] && [ "$l" = "$n" ]; then exec cat "$p"; fi
if [ "$a" = 0 ]; then exec head -c "$l" "$p"; fi
tail -c "+$((a + 1))" "$p" | head -c "$l"
"""
)
_PLACE = (
    _PATHS
    + r"""
abs "$1"
if [ -L "$p" ]; then
  q=$(readlink -f "$p" && echo .) || { echo 'it is a link that leads nowhere' >&2; fail error; }
  p=${q%??}
fi
if [ -d "$p" ]; then fail isdir; fi
parent
t=$d/.dibs-$2.part
if [ -e "$p" ] && [ ! -w "$d" ] && [ -w "$p" ]; then t=$p; fi
finish() {
  if [ "$6" = keep ]; then cat "$t" >"$p" || fail error; [ "$t" = "$p" ] || rm -f "$t"; return; fi
  if [ -f "$p" ] && [ -z "$4" ] && [ -z "$5" ]; then chown "$(stat -c %u:%g "$p")" "$t" 2>/dev/null; fi
  if [ -n "$3" ]; then chmod "$3" "$t" || fail error; fi
  own "$t" "$4" "$5"
  if [ "$t" != "$p" ] && ! mv -f "$t" "$p" 2>/dev/null; then cat "$t" >"$p" || fail error; rm -f "$t"; fi
}
"""
)
# path, name of the part, mode, owner, group, "keep" to write into the file that is there, size or nothing: from its
# input, first beside the file, so that a broken upload changes nothing. Without a size the part stays for FINISH.
WRITE = (
    _PLACE
    + r"""
[ -d "$d" ] || mkdir -p "$d" || fail error
undo() { [ "$t" = "$p" ] || rm -f "$t"; }
trap 'undo; exit 71' HUP INT TERM PIPE
cat >"$t" || { undo; fail error; }
if [ -z "$7" ]; then exit 0; fi
[ "$(stat -c %s "$t")" = "$7" ] || { undo; fail short; }
trap - HUP INT TERM PIPE
( finish "$@" ) || { undo; exit 70; }
"""
)
FINISH = _PLACE + '( finish "$@" ) || { [ "$t" = "$p" ] || rm -f "$t"; exit 70; }\n'
DISCARD = _PLACE + '[ "$t" = "$p" ] || rm -f "$t"\n'
