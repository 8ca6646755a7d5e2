#compdef edgellm
# Completion of edgellm for zsh.  eval "$(edgellm completion zsh)"  below compinit in ~/.zshrc,
# or as a file _edgellm in a folder of $fpath.

_edgellm() {
    local -a lines shown
    local program=${~words[1]} line value
    lines=("${(@f)$("$program" __complete words \
        "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    # The words are of the value alone where it stands behind `--option=`.
    [[ $PREFIX == -*=* ]] && compset -P '*='
    case ${lines[1]%%$'\t'*} in
        model) _files -g '*.(#i)gguf(-.)' ;;
        file) _files ;;
        *)
            for line in "${(@)lines[2,-1]}"; do
                value=${line%%$'\t'*}
                shown+=("${value//:/\\:}:${line#*$'\t'}")
            done
            (( $#shown )) && _describe -V edgellm shown
            ;;
    esac
}

if [[ $funcstack[1] == _edgellm ]]; then
    _edgellm "$@"
elif (( $+functions[compdef] )); then
    compdef _edgellm edgellm
fi
