# Completion of edgellm for bash 4 and later.  eval "$(edgellm completion bash)"

_edgellm() {
    local program=${COMP_WORDS[0]/#\~/$HOME} kind word line
    COMPREPLY=()
    {
        IFS=$'\t' read -r kind word || return
        while IFS= read -r line; do
            COMPREPLY+=("${line%%$'\t'*}")
        done
    } < <("$program" __complete line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    case $kind in
        model | file) compopt -o filenames 2>/dev/null ;;
    esac
    case $kind in
        model)
            # Models and folders; anything else only where there is neither.
            mapfile -t COMPREPLY < <(
                compgen -f -X '!*.[gG][gG][uU][fF]' -- "$word"
                compgen -d -- "$word"
            )
            ((${#COMPREPLY[@]})) || mapfile -t COMPREPLY < <(compgen -f -- "$word")
            ;;
        file) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    esac
    # readline replaces what follows the last colon only.
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}

complete -o nosort -F _edgellm edgellm 2>/dev/null || complete -F _edgellm edgellm
